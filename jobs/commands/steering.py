"""Neurons of one text, in the terminal: which ones matter, what they write, and what is said when they change."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from evaluation.benchmark.samples import Row
from evaluation.report.heatmap import pieces
from jobs.commands.answers import with_targets
from jobs.commands.question import Question, read, space_told
from jobs.commands.terminal import as_json, not_finite, write_file
from jobs.config import ModelConfig
from jobs.plan.models import ResolvedModel, load_tokenizer, open_view, resolve
from jobs.typed import typed
from jobs.versions import versions
from lrp_core.guard import undisturbed
from lrp_core.interventions.neurons import check_neuron, neurons_scaled, neurons_set
from lrp_core.neuron_names import NeuronNames
from lrp_core.neurons import TopNeuron, Writing, nearest_tokens, top_neurons, writing
from lrp_core.parts.block import SHARED
from lrp_core.readout import label_logits
from lrp_core.transfer import to_host
from lrp_core.types import Batch, Relevance, UnusableRows, UserError
from lrp_core.view import ModelView

_WORDS = 4  # that are shown of what a neuron writes
_PREDICTIONS = 3  # that are shown with their probabilities


@dataclass(frozen=True)
class Steering:
    """How neurons, by their names, are to be changed."""

    values: Mapping[str, float] = field(default_factory=dict)
    factors: Mapping[str, float] = field(default_factory=dict)
    last: bool = False  # only where the model predicts and behind, else at all positions

    @classmethod
    def of(cls, sets: Sequence[str], scales: Sequence[str], last: bool) -> Steering:
        """From `L.N=V` and `L.N=F`, in mixtures of experts `L.E.N`.

        Raises UserError for anything else, and for a neuron that is named twice.
        """
        values, factors = (
            dict(_change(text, option) for text in texts) for texts, option in ((sets, "--set"), (scales, "--scale"))
        )
        every = [_change(text, "--set")[0] for text in (*sets, *scales)]
        for neuron in every:
            if every.count(neuron) > 1:
                raise UserError(f"neuron {neuron} is changed twice: set it or scale it, once")
        return cls(values, factors, last)

    def __bool__(self) -> bool:
        return bool(self.values or self.factors)

    def __str__(self) -> str:
        changes = [f"{n} set to {v:g}" for n, v in self.values.items()]
        changes += [f"{n} times {f:g}" for n, f in self.factors.items()]
        return ", ".join(changes) + (" at the last position" if self.last else "")

    def check(self, view: ModelView) -> None:
        """Raises UserError for layers and neurons that the model does not have."""
        check_neuron(view, 0, 0)
        for neuron in (*self.values, *self.factors):
            view.neuron_names.neuron(neuron)

    @contextmanager
    def on(self, view: ModelView, batch: Batch, prompt: int) -> Iterator[None]:
        """The model with changed neurons, for a batch of one sample whose prompt predicts at position `prompt`."""
        width = batch.input_ids.shape[1]
        where = (torch.arange(width) >= prompt if not view.kind.slot else torch.arange(width) == prompt)[None]
        positions = where if self.last else None
        with ExitStack() as undo:
            for how, changes in ((neurons_set, self.values), (neurons_scaled, self.factors)):
                own = {view.neuron_names.neuron(neuron): number for neuron, number in changes.items()}
                undo.enter_context(how(view, [own], positions))
            yield


def _change(text: str, option: str) -> tuple[str, float]:
    neuron, _, number = text.partition("=")
    try:
        value = float(number)
    except ValueError:
        value = None
    if value is None or not NeuronNames.is_name(neuron):
        raise UserError(f"{option} takes LAYER.NEURON=NUMBER, as 2.17=0, not {text!r}")
    if value != value:
        raise UserError(f"{option} {text}: not a number to set a neuron to")
    return ".".join(one if one == SHARED else str(int(one)) for one in neuron.split(".")), value


@dataclass(frozen=True)
class Known:
    """A relevant neuron with what it writes and what it answers to, in words."""

    neuron: TopNeuron
    name: str
    token: str  # at its position
    writes: list[str]
    against: list[str]
    entropy: float
    key: list[str]


@dataclass(frozen=True)
class Said:
    """What the model says of the text, and after it."""

    predictions: list[tuple[str, float]]  # with probabilities, or one score; those asked for behind the most likely
    continuation: str | None
    unit: Literal["probability", "score"] = "probability"


def show_neurons(
    question: Question,
    model_id: str,
    name: str,
    console: Console,
    *,
    top: int = 10,
    generate: int = 1,
    steering: Steering = Steering(),
    normed: bool = False,
    absolute: bool = False,
    json_file: Path | None = None,
    dtype: str = "float32",
    device: str = "cpu",
) -> None:
    """Print the `top` neurons by relevance under the method `name`, and the prediction before and after `steering`.

    `generate` tokens, if more than one, are generated greedily, with and without the change. Raises UserError for
    unknown models, methods, layers and neurons, for words that are not one token, and for changes that make logits
    infinite, or states so large that norms cannot take their deviation.
    """
    info = typed(name)
    resolved = resolve(ModelConfig.model_validate({"name": "model", "id": model_id}))
    if resolved.kind.images:
        raise UserError(f"{model_id} reads images: neurons are told of texts")
    tokenizer = load_tokenizer(resolved.config)
    row = read(question, tokenizer, resolved)
    view = open_view(resolved, dtype, device)
    steering.check(view)
    row = with_targets(question, view, row)
    try:
        computed = info(view, Batch.collate([row], pad_id=0), explanation=question.explanation, neurons=True)
    except UnusableRows as error:
        raise UserError(f"{model_id}: {error.detail}") from None
    (relevance,) = Relevance.on_host([computed])
    assert relevance.neurons is not None
    if not relevance.neurons.isfinite().all():
        raise UserError(f"{model_id}: relevance of {name} is {not_finite(dtype)}")
    logits = [float(one[0]) for one in (relevance.logit_target, relevance.logit_foil) if one is not None]
    say = _Sayer(view, tokenizer, resolved, row, generate)
    names = [say.named(row[key]) for key in ("target_id", "foil_id") if row.get(key) is not None]
    console.print(
        f"{model_id}: neurons for {' rather than '.join(names)} by {name} (explained {_numbers(logits)})"
        f"{space_told(question, tokenizer, view.kind)}",
        markup=False,
    )
    shown = pieces(tokenizer, row["input_ids"])
    known = [_known(view, tokenizer, one, shown, normed) for one in top_neurons(relevance, top, absolute)[0]]
    if known:
        console.print(_table(known))
    before, after = say.of(None), say.of(steering) if steering else None
    _print_said(console, "prediction" if after is None else "before", before)
    if after is not None:
        _print_said(console, "after", after)
        console.print(f"changed: {steering}", markup=False)
    if json_file is not None:
        facts = {"model": model_id, "identity": resolved.identity, "dtype": dtype, "versions": versions()}
        told = {"neurons": [asdict(one) for one in known], "before": asdict(before), "after": after and asdict(after)}
        write_file(json_file, as_json({**facts, "method": name, **told}))
        console.print(f"written to {json_file}", markup=False)


def _known(view: ModelView, tokenizer: Any, one: TopNeuron, shown: Sequence[str], normed: bool) -> Known:
    written: Writing = writing(view, one.layer, one.neuron, _WORDS, normed)
    near = nearest_tokens(view, one.layer, one.neuron, _WORDS)
    promoted, suppressed, key = (
        [piece.strip() or repr(piece) for piece in pieces(tokenizer, [token for token, _ in listed])]
        for listed in (written.promoted, written.suppressed, near)
    )
    name = view.neuron_names.of(one.layer, one.neuron)
    return Known(one, name, shown[one.position].strip(), promoted, suppressed, written.entropy, key)


def _table(known: Sequence[Known]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("neuron", "relevance", "activation", "at", "writes", "against", "entropy", "key"):
        table.add_column(heading, justify="right" if heading in ("relevance", "activation", "entropy") else "left")
    for one in known:
        neuron = one.neuron
        numbers = (f"{neuron.relevance:+.2f}", f"{neuron.value:+.2f}")
        words = (" ".join(one.writes), " ".join(one.against), f"{one.entropy:.2f}", " ".join(one.key))
        table.add_row(one.name, *numbers, one.token, *words)
    return table


def _numbers(logits: Sequence[float]) -> str:
    return " against ".join(f"{logit:.2f}" for logit in logits)


def _print_said(console: Console, heading: str, said: Said) -> None:
    shown = ".1%" if said.unit == "probability" else ".2f"
    words = ", ".join(f"{word} {number:{shown}}" for word, number in said.predictions)
    console.print(f"{heading}: {words}", markup=False)
    if said.continuation is not None:
        console.print(f"  and on: {said.continuation}", markup=False)


@dataclass(frozen=True)
class _Sayer:
    """What a model says of one row, as it is or steered."""

    view: ModelView
    tokenizer: Any
    resolved: ResolvedModel
    row: Row
    generate: int

    def named(self, token: int) -> str:
        """A token, or a label, in words."""
        if self.view.kind.labels:
            return self.resolved.labels[token] if self.resolved.labels else "the score"
        piece = pieces(self.tokenizer, [token])[0]
        return piece.strip() or repr(piece)

    def of(self, steering: Steering | None) -> Said:
        """The most likely tokens or labels and those explained, and the greedy continuation where one is asked for."""
        logits = self._logits(self.row, steering)
        if self.view.predicts_score:
            return Said([("the score", float(logits[0]))], None, "score")
        shares = logits.softmax(0)
        best = logits.sort(descending=True, stable=True).indices[:_PREDICTIONS].tolist()
        asked = [self.row[key] for key in ("target_id", "foil_id") if self.row.get(key) is not None]
        told = [(self.named(token), float(shares[token])) for token in dict.fromkeys([*best, *asked])]
        return Said(told, self._continued(steering) if self.generate > 1 else None)

    def _continued(self, steering: Steering | None) -> str:
        row, new = dict(self.row), []
        for _ in range(self.generate):
            token = int(self._logits(row, steering).argmax())
            new.append(token)
            if token == self.tokenizer.eos_token_id or len(row["input_ids"]) >= self.view.max_length:
                break
            row |= {"input_ids": [*row["input_ids"], token], "position": row["position"] + 1}
        return "".join(pieces(self.tokenizer, new)).strip()

    @torch.inference_mode()
    def _logits(self, row: Row, steering: Steering | None) -> torch.Tensor:
        """Of all tokens or labels [V], where `row` predicts."""
        batch = Batch.collate([{**row, "target_id": 0, "foil_id": None}], pad_id=0).to(self.view.device)
        change = (steering or Steering()).on(self.view, batch, self.row["position"])
        with undisturbed(self.view), change, _overflowing(self.view) as overflown:
            logits = label_logits(self.view, self.view.prediction(self.view.hidden(batch), batch))[0].double().cpu()
        if not logits.isfinite().all():
            how = f"with {steering} the" if steering else "the"
            raise UserError(f"{how} model's logits are not finite" + (": choose smaller values" if steering else ""))
        if steering and overflown():
            raise UserError(f"with {steering} the model's states are too large for its norms: choose smaller values")
        return logits


@contextmanager
def _overflowing(view: ModelView) -> Iterator[Callable[[], bool]]:
    """Gives a function that tells whether a norm met states inside whose squares are not finite.

    Its deviation is then infinite, and what it puts out is 0 (or its bias) whatever the states are: finite logits that
    say nothing.
    """
    finite: list[Tensor] = []

    def look(_: nn.Module, args: tuple[Tensor, ...]) -> None:
        x = args[0]
        finite.append(x.to(torch.promote_types(x.dtype, torch.float32)).square().mean(-1).isfinite().all())

    with ExitStack() as undo:
        for norm in view.norms():
            undo.callback(norm.module.register_forward_pre_hook(look).remove)
        yield lambda: not all(map(bool, to_host(finite)))
