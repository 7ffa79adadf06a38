"""The most relevant neurons of a prediction, what they write, and the prediction after some of them are changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from closelook.evaluation.benchmark.encoding import pieces
from closelook.explaining.explained import Asked, space_note, with_targets
from closelook.explaining.opening import Opened
from closelook.explaining.reading import View, read
from closelook.lrp_core.interventions.neurons import check_neuron, neurons_scaled, neurons_set
from closelook.lrp_core.methods.record import Method
from closelook.lrp_core.neurons.logit_lens import TopNeuron, nearest_tokens, top_neurons, writing
from closelook.lrp_core.parts.block import SHARED
from closelook.lrp_core.parts.neuron_names import NeuronNames
from closelook.lrp_core.readers.predictions import suppressed
from closelook.lrp_core.records.types import Batch, Relevance, UnusableRows, UserError
from closelook.lrp_core.views.guard import undisturbed
from closelook.lrp_core.views.view import ModelView
from closelook.terminal import not_finite, say, say_table

_WORDS = 4  # tokens shown of each end of a neuron's logit lens, and of its key vector
_PREDICTIONS = 3  # most likely tokens that are shown with their probabilities


class Change(NamedTuple):
    """A neuron, by its name, that is set to a number, or whose activation is multiplied with it."""

    neuron: str
    number: float
    scales: bool

    def __str__(self) -> str:
        return f"{self.neuron} {'times' if self.scales else 'set to'} {self.number:g}"


def changes_of(sets: Sequence[str], scales: Sequence[str]) -> list[Change]:
    """Parse the values of the options `--set LAYER.NEURON=VALUE` and `--scale LAYER.NEURON=FACTOR`.

    Raises UserError for anything else, and for a neuron that is named twice.
    """
    changes = [_change(text, "--set") for text in sets] + [_change(text, "--scale") for text in scales]
    names = [change.neuron for change in changes]
    for neuron in names:
        if names.count(neuron) > 1:
            raise UserError(f"neuron {neuron} is changed twice: name it once, in --set or in --scale")
    return changes


def _change(text: str, option: str) -> Change:
    """The change of the text NAME=NUMBER. Raises UserError for any other text."""
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
    return Change(".".join(parts), value, option == "--scale")


@contextmanager
def steered(view: ModelView, changes: Sequence[Change]) -> Iterator[None]:
    """Change neurons at every position inside the block, for a batch of one sample."""
    with ExitStack() as undo:
        for intervention, scales in ((neurons_set, False), (neurons_scaled, True)):
            numbers = {view.neuron_names.neuron(each.neuron): each.number for each in changes if each.scales == scales}
            undo.enter_context(intervention(view, [numbers]))
        yield


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
    unit: str  # probability or score


def predict(opened: Opened, view: View, changes: Sequence[Change], generate: int) -> Predictions:
    """The most likely tokens or labels, target and foil, and a greedy continuation of up to `generate` > 1 tokens.

    Raises UserError if the changes make the logits infinite.
    """
    logits = _logits(opened, view, changes)
    if opened.output == "score":
        return Predictions([("the score", float(logits[0]))], None, "score")
    shares = logits.softmax(0)
    best = logits.sort(descending=True, stable=True).indices[:_PREDICTIONS].tolist()
    named = [(_name(opened, token), float(shares[token])) for token in dict.fromkeys([*best, *_explained(view)])]
    new: list[int] = []
    while generate > 1 and len(new) < generate:
        logits[list(suppressed(opened.view, first=not new))] = -torch.inf
        new.append(int(logits.argmax()))
        if new[-1] == opened.tokenizer.eos_token_id or len(view.input_ids) >= opened.view.max_length:
            break
        view = replace(view, input_ids=[*view.input_ids, new[-1]], position=view.position + 1)
        logits = _logits(opened, view, changes)
    continuation = "".join(pieces(opened.tokenizer, new)).strip() if new else None
    return Predictions(named, continuation, "probability")


@torch.no_grad()
def _logits(opened: Opened, at: View, changes: Sequence[Change]) -> Tensor:
    """The logits of all tokens or labels [V] at the readout position of `at`. Raises UserError if not finite."""
    view = opened.view
    batch = Batch.collate([{**at.row, "target_id": 0, "foil_id": None}], pad_id=0).to(view.device)
    with undisturbed(view), steered(view, changes):
        logits = view.all_logits(batch)[0, -1].double().cpu()
    if not logits.isfinite().all():
        if changes:
            raise UserError(
                f"with {', '.join(map(str, changes))} the model's logits are not finite: choose smaller values"
            )
        raise UserError(f"the model's logits are {not_finite(opened.dtype)}")
    return logits


def _explained(view: View) -> list[int]:
    """The explained tokens or labels: target and foil."""
    return [token for token in (view.target_id, view.foil_id) if token is not None]


def _name(opened: Opened, token: int) -> str:
    """The text of a token; of a classifier the name of a label, of a regressor "the score"."""
    if not opened.kind.labels:
        return word_of(opened, token)
    return opened.labels[token] if opened.labels else "the score"


def show_neurons(
    asked: Asked,
    opened: Opened,
    method: Method,
    changes: Sequence[Change] = (),
    top: int = 10,
    generate: int = 1,
) -> dict[str, Any]:
    """Print the most relevant neurons of a prediction, and the prediction before and after changes.

    Returns them as plain data. Raises UserError for a question that does not fit the model, for neurons that it does
    not have, and for changes that make logits infinite.
    """
    if opened.kind.images:
        raise UserError(f"{opened.id} reads images: `closelook neurons` reads texts")
    if generate > 1 and (opened.kind.labels or opened.kind.slot):
        raise UserError(f"{opened.id} does not continue a text: leave `generate` out")
    check_neuron(opened.view, 0, 0)
    for change in changes:
        opened.view.neuron_names.neuron(change.neuron)
    [view] = with_targets([asked.question], opened, [read(*asked, opened)])
    relevance = _relevance(view, opened, method, asked.question.explanation)
    logits = (relevance.logit_target, relevance.logit_foil)
    numbers = " against ".join(f"{float(logit[0]):.2f}" for logit in logits if logit is not None)
    why, note = (
        " rather than ".join(_name(opened, token) for token in _explained(view)),
        space_note(*asked, opened, view),
    )
    say(f"{opened.id}: neurons for {why} by {method.name} (explained {numbers}){note}")
    [best] = top_neurons(relevance, top)
    texts = opened.texts.of(view.input_ids)
    neurons = [_in_words(neuron, opened, texts) for neuron in best]
    if neurons:
        _show_table(neurons)
    before, after = predict(opened, view, (), generate), None
    _show_predictions("before" if changes else "prediction", before)
    if changes:
        after = predict(opened, view, changes, generate)
        _show_predictions("after", after)
        say(f"changed: {', '.join(map(str, changes))}")
    record = {**opened.model.facts, "method": method.name, "neurons": list(map(asdict, neurons))}
    return {**record, "before": asdict(before), "after": None if after is None else asdict(after)}


def _relevance(view: View, opened: Opened, method: Method, explanation: str | None) -> Relevance:
    """The relevance by a method, neurons included, on the CPU. Raises UserError if it is not finite."""
    batch = Batch.collate([view.row], pad_id=0)
    try:
        computed = method(opened.view, batch, explanation=explanation, neurons=True)
    except UnusableRows as error:
        raise UserError(f"{opened.id}: {error.detail}") from None
    (relevance,) = Relevance.on_host([computed])
    assert relevance.neurons is not None
    if not relevance.neurons.isfinite().all():
        raise UserError(f"{opened.id}: relevance of {method.name} is {not_finite(opened.dtype)}")
    return relevance


def word_of(opened: Opened, token: int) -> str:
    """The text of a token without white space around it; of white space alone, in quotes."""
    [text] = pieces(opened.tokenizer, [token])
    return text.strip() or repr(text)


def _in_words(top: TopNeuron, opened: Opened, texts: Sequence[str]) -> Neuron:
    """A neuron with its logit lens in words; `texts` are those of the tokens that the model read."""
    view = opened.view
    lens = writing(view, top.layer, top.neuron, _WORDS)
    lists = (lens.promoted, lens.suppressed, nearest_tokens(view, top.layer, top.neuron, _WORDS))
    promoted, suppresses, key = ([word_of(opened, token) for token, _ in listed] for listed in lists)
    name = view.neuron_names.of(top.layer, top.neuron)
    return Neuron(top, name, texts[top.position].strip(), promoted, suppresses, lens.entropy, key)


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
