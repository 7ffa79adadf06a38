"""`closelook neurons TEXT`: the most relevant neurons for a prediction, their logit lens, and the prediction after some
neurons' activations are changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from closelook.evaluation.benchmark.encoding import pieces
from closelook.evaluation.benchmark.samples import Row
from closelook.jobs.commands.options import ShownOptions
from closelook.jobs.commands.questions.answers import with_targets
from closelook.jobs.commands.questions.opened import Opened
from closelook.jobs.commands.questions.question import Question, space_note
from closelook.jobs.commands.questions.reading import read
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
from closelook.terminal import as_json, not_finite, say, say_table, write_file

_WORDS = 4  # tokens shown of each end of a neuron's logit lens, and of its key vector
_PREDICTIONS = 3  # most likely tokens that are shown with their probabilities


@dataclass(frozen=True)
class Steering:
    """Changes of neurons' activations."""

    values: Mapping[str, float] = field(default_factory=dict)  # activation to set, by the neuron's name
    factors: Mapping[str, float] = field(default_factory=dict)  # factor to multiply with, by the neuron's name
    last: bool = False  # True: change only the readout position and generated tokens; False: all positions

    @classmethod
    def of(cls, sets: Sequence[str], scales: Sequence[str], last: bool) -> Steering:
        """Parse the values of the options `--set LAYER.NEURON=VALUE` and `--scale LAYER.NEURON=FACTOR`.

        In a mixture of experts, a neuron is LAYER.EXPERT.NEURON. Raises UserError for anything else, and for a neuron
        that is named twice.
        """
        values: dict[str, float] = {}
        factors: dict[str, float] = {}
        for option, texts, changes in (("--set", sets, values), ("--scale", scales, factors)):
            for text in texts:
                neuron, number = _change(text, option)
                if neuron in values or neuron in factors:
                    raise UserError(f"neuron {neuron} is changed twice: name it once, in --set or in --scale")
                changes[neuron] = number
        return cls(values, factors, last)

    def __bool__(self) -> bool:
        return bool(self.values or self.factors)

    def __str__(self) -> str:
        changes = [f"{neuron} set to {value:g}" for neuron, value in self.values.items()]
        changes += [f"{neuron} times {factor:g}" for neuron, factor in self.factors.items()]
        return ", ".join(changes) + (" at the last position" if self.last else "")

    def check(self, view: ModelView) -> None:
        """Raise UserError if the model does not have one of the neurons."""
        check_neuron(view, 0, 0)
        for neuron in (*self.values, *self.factors):
            view.neuron_names.neuron(neuron)

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


def _change(text: str, option: str) -> tuple[str, float]:
    """(name of the neuron, number) from the text NAME=NUMBER. Raises UserError for any other text."""
    neuron, _, number = text.partition("=")
    try:
        value = float(number)
    except ValueError:
        value = None
    if value is None or not NeuronNames.is_name(neuron):
        raise UserError(
            f"{option} must be LAYER.NEURON=NUMBER, as 2.17=0 (LAYER.EXPERT.NEURON=NUMBER in a mixture of experts), "
            f"not {text!r}"
        )
    if value != value:  # NaN
        raise UserError(f"{option} {text}: NaN is no number that a neuron can take")
    parts = (part if part == SHARED else str(int(part)) for part in neuron.split("."))
    return ".".join(parts), value


@dataclass(frozen=True)
class Known:
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

    def show(self, heading: str) -> None:
        """Print the predictions, and the continuation if there is one."""
        digits = ".1%" if self.unit == "probability" else ".2f"
        say(f"{heading}: {', '.join(f'{word} {number:{digits}}' for word, number in self.predictions)}")
        if self.continuation is not None:
            say(f"  continued: {self.continuation}")


def show_neurons(
    question: Question,
    opened: Opened,
    method: Method,
    steering: Steering,
    shown: ShownOptions,
    generate: int,
) -> None:
    """Print the most relevant neurons under the method, and the prediction before and after `steering`.

    `shown` says how many neurons, and how they are ranked and read. If `generate` is above 1, so many tokens are also
    generated greedily, with and without the change.

    Raises UserError for neurons that the model does not have, for words that are not one token, for `generate` and a
    model that does not continue texts, and for changes that make logits infinite, or states so large that norms
    overflow.
    """
    kind = opened.resolved.kind
    if kind.images:
        raise UserError(f"{opened.id} reads images: `closelook neurons` reads texts")
    if generate > 1 and (kind.labels or kind.slot):
        raise UserError(f"{opened.id} does not continue a text: leave `generate` out")
    row = read(question, opened)
    view = opened.view
    steering.check(view)
    [row] = with_targets([question], opened, [row])
    model = _SteeredModel(opened, row, generate)
    relevance = _relevance(question, opened, method, row)
    logits = (relevance.logit_target, relevance.logit_foil)
    explained = " against ".join(f"{float(logit[0]):.2f}" for logit in logits if logit is not None)
    names = " rather than ".join(map(model.named, model.asked))
    *texts, token = pieces(opened.tokenizer, [*row["input_ids"], row["target_id"]])
    note = space_note(question, opened, texts, token)
    say(f"{opened.id}: neurons for {names} by {method.name} (explained {explained}){note}")
    [neurons] = top_neurons(relevance, shown.top, shown.absolute)
    known = [_known(opened, neuron, texts, shown.normed) for neuron in neurons]
    if known:
        _show_table(known)
    before, after = model.predict(Steering()), None
    before.show("before" if steering else "prediction")
    if steering:
        after = model.predict(steering)
        after.show("after")
        say(f"changed: {steering}")
    if shown.json is not None:
        facts = {**opened.facts, "method": method.name, "neurons": list(map(asdict, known))}
        predictions = {"before": asdict(before), "after": after and asdict(after)}
        write_file(shown.json, as_json(facts | predictions))


def _relevance(question: Question, opened: Opened, method: Method, row: Row) -> Relevance:
    """The relevance of one row, neurons included, on the CPU. Raises UserError if it is not finite."""
    batch = Batch.collate([row], pad_id=0)
    try:
        computed = method(opened.view, batch, explanation=question.explanation, neurons=True)
    except UnusableRows as error:
        raise UserError(f"{opened.id}: {error.detail}") from None
    (relevance,) = Relevance.on_host([computed])
    assert relevance.neurons is not None
    if not relevance.neurons.isfinite().all():
        raise UserError(f"{opened.id}: relevance of {method.name} is {not_finite(opened.dtype)}")
    return relevance


def _known(opened: Opened, top: TopNeuron, shown: Sequence[str], normed: bool) -> Known:
    """A relevant neuron with its logit lens in words; `shown` are the texts of the tokens that the model read."""
    view = opened.view
    written = writing(view, top.layer, top.neuron, _WORDS, normed)
    near = nearest_tokens(view, top.layer, top.neuron, _WORDS)
    lists = (written.promoted, written.suppressed, near)
    promoted, suppressed, key = (_in_words(opened, [token for token, _ in listed]) for listed in lists)
    name = view.neuron_names.of(top.layer, top.neuron)
    return Known(top, name, shown[top.position].strip(), promoted, suppressed, written.entropy, key)


def _in_words(opened: Opened, tokens: Sequence[int]) -> list[str]:
    """The text of each token without white space around it; of white space alone, in quotes."""
    return [piece.strip() or repr(piece) for piece in pieces(opened.tokenizer, tokens)]


def _show_table(known: Sequence[Known]) -> None:
    """Print a row for each neuron."""
    rows = []
    for neuron in known:
        relevance, activation = f"{neuron.neuron.relevance:+.2f}", f"{neuron.neuron.value:+.2f}"
        writes, against, key = (" ".join(words) for words in (neuron.writes, neuron.against, neuron.key))
        rows.append((neuron.name, relevance, activation, neuron.token, writes, against, f"{neuron.entropy:.2f}", key))
    headings = ("neuron", "relevance", "activation", "at", "writes", "against", "entropy", "key")
    say_table(headings, rows, numbers=("relevance", "activation", "entropy"), lines=False)


@dataclass(frozen=True)
class _SteeredModel:
    """A model and a row that it predicts for, with or without steering."""

    opened: Opened
    row: Row
    generate: int  # tokens of the continuation

    @property
    def asked(self) -> list[int]:
        """The ids of the explained tokens or labels: target and foil."""
        ids = (self.row.get("target_id"), self.row.get("foil_id"))
        return [token for token in ids if token is not None]

    def named(self, token: int) -> str:
        """The text of a token; of a classifier the name of a label, of a regressor "the score"."""
        resolved = self.opened.resolved
        if resolved.kind.labels:  # a classifier, or a regressor, whose only output has no name
            return resolved.labels[token] if resolved.labels else "the score"
        return _in_words(self.opened, [token])[0]

    def predict(self, steering: Steering) -> Predictions:
        """The most likely tokens or labels, the explained ones, and the greedy continuation, if it is asked for."""
        logits = self._logits(self.row, steering)
        if self.opened.view.predicts_score:
            return Predictions([("the score", float(logits[0]))], None, "score")
        shares = logits.softmax(0)
        best = logits.sort(descending=True, stable=True).indices[:_PREDICTIONS].tolist()
        shown = [(self.named(token), float(shares[token])) for token in dict.fromkeys([*best, *self.asked])]
        return Predictions(shown, self._continued(steering) if self.generate > 1 else None)

    def _continued(self, steering: Steering) -> str:
        """The text of up to `generate` tokens that the steered model generates greedily."""
        tokenizer, row = self.opened.tokenizer, dict(self.row)
        new: list[int] = []
        for _ in range(self.generate):
            logits = self._logits(row, steering).clone()  # of an inference pass, which cannot be changed in place
            logits[list(suppressed(self.opened.view, first=not new))] = -torch.inf
            token = int(logits.argmax())
            new.append(token)
            if token == tokenizer.eos_token_id or len(row["input_ids"]) >= self.opened.view.max_length:
                break
            row |= {"input_ids": [*row["input_ids"], token], "position": row["position"] + 1}
        return "".join(pieces(tokenizer, new)).strip()

    @torch.inference_mode()
    def _logits(self, row: Row, steering: Steering) -> Tensor:
        """The logits of all tokens or labels [V] at the row's readout position. Raises UserError if not finite."""
        view = self.opened.view
        batch = Batch.collate([{**row, "target_id": 0, "foil_id": None}], pad_id=0).to(view.device)
        change = steering.on(view, batch, self.row["position"])
        with undisturbed(view), change, _overflowing(view) as overflown:
            state = view.prediction(view.hidden(batch), batch)
            logits = label_logits(view, state)[0].double().cpu()
        if not logits.isfinite().all():
            if steering:
                raise UserError(f"with {steering} the model's logits are not finite: choose smaller values")
            raise UserError(f"the model's logits are {not_finite(self.opened.dtype)}")
        if steering and overflown():
            raise UserError(f"with {steering} the model's states are too large for its norms: choose smaller values")
        return logits


@contextmanager
def _overflowing(view: ModelView) -> Iterator[Callable[[], bool]]:
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
