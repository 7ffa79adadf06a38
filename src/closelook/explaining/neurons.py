"""The most relevant neurons of a prediction, what they write, and the prediction after some of them are changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from closelook.evaluation.benchmark.encoding import pieces
from closelook.explaining.explained import space_note, with_targets
from closelook.explaining.opening import Opened
from closelook.explaining.question import Input, Question
from closelook.explaining.reading import View, read
from closelook.lrp_core.device.transfer import to_host
from closelook.lrp_core.interventions.neurons import check_neuron, neurons_scaled, neurons_set
from closelook.lrp_core.methods.record import Method
from closelook.lrp_core.neurons.logit_lens import TopNeuron, nearest_tokens, top_neurons, writing
from closelook.lrp_core.parts.block import SHARED
from closelook.lrp_core.parts.neuron_names import NeuronNames
from closelook.lrp_core.readers.predictions import suppressed
from closelook.lrp_core.readers.readout import label_logits
from closelook.lrp_core.records.types import Batch, Relevance, UnusableRows, UserError
from closelook.lrp_core.views.guard import undisturbed
from closelook.lrp_core.views.view import ModelView
from closelook.terminal import not_finite, say, say_table

_WORDS = 4  # tokens shown of each end of a neuron's logit lens, and of its key vector
_PREDICTIONS = 3  # most likely tokens that are shown with their probabilities


@dataclass(frozen=True)
class Steering:
    """Changes of neurons' activations."""

    values: Mapping[str, float] = field(default_factory=dict)  # activation to set, by the neuron's name
    factors: Mapping[str, float] = field(default_factory=dict)  # factor to multiply with, by the neuron's name
    last: bool = False  # True: change only the readout position and generated tokens; False: all positions

    def __bool__(self) -> bool:
        return bool(self.values or self.factors)

    def __str__(self) -> str:
        changes = [f"{neuron} set to {value:g}" for neuron, value in self.values.items()]
        changes += [f"{neuron} times {factor:g}" for neuron, factor in self.factors.items()]
        return ", ".join(changes) + (" at the last position" if self.last else "")

    @contextmanager
    def on(self, view: ModelView, batch: Batch, prompt: int) -> Iterator[None]:
        """Change the neurons inside the block, for a batch of one sample whose readout position is `prompt`.

        With `last` and a causal model, tokens after the readout position, which were generated, are changed too.
        """
        positions = None
        if self.last:
            at = torch.arange(batch.input_ids.shape[1])
            positions = (at == prompt if view.kind.slot else at >= prompt)[None]
        with ExitStack() as undo:
            for change, numbers in ((neurons_set, self.values), (neurons_scaled, self.factors)):
                located = {view.neuron_names.neuron(neuron): number for neuron, number in numbers.items()}
                undo.enter_context(change(view, [located], positions))
            yield


def steering(sets: Sequence[str], scales: Sequence[str], last: bool) -> Steering:
    """Parse the values of the options `--set LAYER.NEURON=VALUE` and `--scale LAYER.NEURON=FACTOR`.

    Raises UserError for anything else, and for a neuron that is named twice.
    """
    values = [_change(text, "--set") for text in sets]
    factors = [_change(text, "--scale") for text in scales]
    names = [neuron for neuron, _ in (*values, *factors)]
    for neuron in names:
        if names.count(neuron) > 1:
            raise UserError(f"neuron {neuron} is changed twice: name it once, in --set or in --scale")
    return Steering(dict(values), dict(factors), last)


def _change(text: str, option: str) -> tuple[str, float]:
    """(name of the neuron, number) from the text NAME=NUMBER. Raises UserError for any other text."""
    neuron, _, number = text.partition("=")
    try:
        value = float(number)
    except ValueError:
        value = None
    if value is None or not NeuronNames.is_name(neuron):
        form = "LAYER.NEURON=NUMBER, as 2.17=0 (LAYER.EXPERT.NEURON=NUMBER in a mixture of experts)"
        raise UserError(f"{option} must be {form}, not {text!r}")
    if value != value:  # NaN
        raise UserError(f"{option} {text}: NaN is no number that a neuron can take")
    parts = (part if part == SHARED else str(int(part)) for part in neuron.split("."))
    return ".".join(parts), value


@dataclass(frozen=True)
class Neuron:
    """A relevant neuron with its logit lens in words."""

    neuron: TopNeuron
    name: str
    token: str  # of the text, at the position of its largest relevance
    writes: list[str]  # tokens that its value vector promotes most
    against: list[str]  # tokens that its value vector suppresses most
    entropy: float  # of its logit lens
    key: list[str]  # tokens whose embedding is nearest to its key vector


@dataclass(frozen=True)
class Predictions:
    """The model's predictions for a text, and its continuation."""

    #: (token or label, probability), the most likely first, then the explained ones; or one score.
    predictions: list[tuple[str, float]]
    continuation: str | None  # generated text, if asked for
    unit: Literal["probability", "score"] = "probability"


class NeuronQuestion:
    """A question about a text whose answer is in neurons. Raises UserError if it does not fit the model."""

    def __init__(self, item: Input, question: Question, opened: Opened, generate: int = 1) -> None:
        """`generate` is the number of tokens that the model continues the text by; with 1, it does not."""
        if opened.kind.images:
            raise UserError(f"{opened.id} reads images: `closelook neurons` reads texts")
        if generate > 1 and (opened.kind.labels or opened.kind.slot):
            raise UserError(f"{opened.id} does not continue a text: leave `generate` out")
        check_neuron(opened.view, 0, 0)
        [self.view] = with_targets([question], opened, [read(item, question, opened)])
        self.opened, self.generate = opened, generate
        self.explanation = question.explanation
        self.note = space_note(item, question, opened, self.view)

    @property
    def explained(self) -> list[str]:
        """The explained tokens or labels: target and foil."""
        ids = (self.view.target_id, self.view.foil_id)
        return [self._named(token) for token in ids if token is not None]

    def relevance(self, method: Method) -> Relevance:
        """The relevance by a method, neurons included, on the CPU. Raises UserError if it is not finite."""
        batch = Batch.collate([self.view.row], pad_id=0)
        try:
            computed = method(self.opened.view, batch, explanation=self.explanation, neurons=True)
        except UnusableRows as error:
            raise UserError(f"{self.opened.id}: {error.detail}") from None
        (relevance,) = Relevance.on_host([computed])
        assert relevance.neurons is not None
        if not relevance.neurons.isfinite().all():
            raise UserError(f"{self.opened.id}: relevance of {method.name} is {not_finite(self.opened.dtype)}")
        return relevance

    def top(self, relevance: Relevance, count: int) -> list[Neuron]:
        """The `count` most relevant neurons."""
        texts = self.opened.texts.of(self.view.input_ids)
        [best] = top_neurons(relevance, count)
        return [self._in_words(neuron, texts) for neuron in best]

    def _in_words(self, top: TopNeuron, texts: Sequence[str]) -> Neuron:
        """A neuron with its logit lens in words; `texts` are those of the tokens that the model read."""
        view = self.opened.view
        lens = writing(view, top.layer, top.neuron, _WORDS)
        lists = (lens.promoted, lens.suppressed, nearest_tokens(view, top.layer, top.neuron, _WORDS))
        promoted, suppresses, key = ([self._word(token) for token, _ in listed] for listed in lists)
        name = view.neuron_names.of(top.layer, top.neuron)
        return Neuron(top, name, texts[top.position].strip(), promoted, suppresses, lens.entropy, key)

    def _word(self, token: int) -> str:
        """The text of a token without white space around it; of white space alone, in quotes."""
        [text] = pieces(self.opened.tokenizer, [token])
        return text.strip() or repr(text)

    def _named(self, token: int) -> str:
        """The text of a token; of a classifier the name of a label, of a regressor "the score"."""
        if not self.opened.kind.labels:
            return self._word(token)
        return self.opened.labels[token] if self.opened.labels else "the score"

    def predict(self, change: Steering) -> Predictions:
        """The most likely tokens or labels, the explained ones, and the greedy continuation, if it is asked for."""
        logits = self._logits(self.view, change)
        if self.opened.output == "score":
            return Predictions([("the score", float(logits[0]))], None, "score")
        shares = logits.softmax(0)
        best = logits.sort(descending=True, stable=True).indices[:_PREDICTIONS].tolist()
        explained = [token for token in (self.view.target_id, self.view.foil_id) if token is not None]
        shown = [(self._named(token), float(shares[token])) for token in dict.fromkeys([*best, *explained])]
        return Predictions(shown, self._continued(change) if self.generate > 1 else None)

    def _continued(self, change: Steering) -> str:
        """The text of up to `generate` tokens that the steered model generates greedily."""
        opened, view = self.opened, self.view
        new: list[int] = []
        for _ in range(self.generate):
            logits = self._logits(view, change).clone()  # of an inference pass, which cannot be changed in place
            logits[list(suppressed(opened.view, first=not new))] = -torch.inf
            token = int(logits.argmax())
            new.append(token)
            if token == opened.tokenizer.eos_token_id or len(view.input_ids) >= opened.view.max_length:
                break
            view = replace(view, input_ids=[*view.input_ids, token], position=view.position + 1)
        return "".join(pieces(opened.tokenizer, new)).strip()

    @torch.inference_mode()
    def _logits(self, at: View, change: Steering) -> Tensor:
        """The logits of all tokens or labels [V] at the readout position of `at`. Raises UserError if not finite."""
        view = self.opened.view
        row: dict[str, Any] = {**at.row, "target_id": 0, "foil_id": None}
        batch = Batch.collate([row], pad_id=0).to(view.device)
        with undisturbed(view), change.on(view, batch, self.view.position), overflow_watch(view) as overflown:
            state = view.prediction(view.hidden(batch), batch)
            logits = label_logits(view, state)[0].double().cpu()
        if not logits.isfinite().all():
            if change:
                raise UserError(f"with {change} the model's logits are not finite: choose smaller values")
            raise UserError(f"the model's logits are {not_finite(self.opened.dtype)}")
        if change and overflown():
            raise UserError(f"with {change} the model's states are too large for its norms: choose smaller values")
        return logits


@contextmanager
def overflow_watch(view: ModelView) -> Iterator[Callable[[], bool]]:
    """Yield a function that returns True if a norm got states whose squares overflowed inside the block.

    Such a norm divides by infinity and returns 0 (or its bias) whatever the states are, so the logits are finite but
    mean nothing.
    """
    finite: list[Tensor] = []

    def look(_: nn.Module, args: tuple[Tensor, ...]) -> None:
        x = args[0]
        squares = x.to(torch.promote_types(x.dtype, torch.float32)).square()
        finite.append(squares.mean(-1).isfinite().all())

    with ExitStack() as undo:
        for norm in view.norms():
            undo.callback(norm.module.register_forward_pre_hook(look).remove)
        yield lambda: not all(map(bool, to_host(finite)))


def show_neurons(question: NeuronQuestion, method: Method, change: Steering, top: int = 10) -> dict[str, Any]:
    """Print the most relevant neurons by a method, and the prediction before and after a change.

    Returns them as plain data. Raises UserError for neurons that the model does not have, and for changes that make
    logits infinite, or states so large that norms overflow.
    """
    opened = question.opened
    for name in (*change.values, *change.factors):
        opened.view.neuron_names.neuron(name)
    relevance = question.relevance(method)
    logits = (relevance.logit_target, relevance.logit_foil)
    numbers = " against ".join(f"{float(logit[0]):.2f}" for logit in logits if logit is not None)
    why = " rather than ".join(question.explained)
    say(f"{opened.id}: neurons for {why} by {method.name} (explained {numbers}){question.note}")
    neurons = question.top(relevance, top)
    if neurons:
        _show_table(neurons)
    before, after = question.predict(Steering()), None
    _show_predictions("before" if change else "prediction", before)
    if change:
        after = question.predict(change)
        _show_predictions("after", after)
        say(f"changed: {change}")
    record = {**opened.model.facts, "method": method.name, "neurons": list(map(asdict, neurons))}
    return {**record, "before": asdict(before), "after": None if after is None else asdict(after)}


def _show_table(neurons: Sequence[Neuron]) -> None:
    """Print a row for each neuron."""
    rows = []
    for neuron in neurons:
        relevance, activation = f"{neuron.neuron.relevance:+.2f}", f"{neuron.neuron.value:+.2f}"
        writes, against, key = (" ".join(words) for words in (neuron.writes, neuron.against, neuron.key))
        rows.append((neuron.name, relevance, activation, neuron.token, writes, against, f"{neuron.entropy:.2f}", key))
    headings = ("neuron", "relevance", "activation", "at", "writes", "against", "entropy", "key")
    say_table(headings, rows, numbers=("relevance", "activation", "entropy"), lines=False)


def _show_predictions(heading: str, predicted: Predictions) -> None:
    """Print the predictions, and the continuation if there is one."""
    digits = ".1%" if predicted.unit == "probability" else ".2f"
    say(f"{heading}: {', '.join(f'{word} {number:{digits}}' for word, number in predicted.predictions)}")
    if predicted.continuation is not None:
        say(f"  continued: {predicted.continuation}")
