"""The texts in which one neuron is most active, in the terminal, coloured by what makes it so.

They are looked for in a file, or read from a run that has looked through a corpus for every neuron.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
from rich.console import Console
from rich.text import Text

from evaluation.benchmark.contexts import LENGTH, pieces_of, template_of
from evaluation.benchmark.corpus import Corpus, Entry, entries
from evaluation.benchmark.sources.text import TEXT
from evaluation.report.heatmap import pieces, terminal
from evaluation.schema import ACTIVATIONS, CONTEXTS
from jobs.config import ModelConfig, RunConfig
from jobs.plan.cells import make_plan
from jobs.plan.models import load_tokenizer, open_view, resolve
from jobs.plan.products.contexts import ContextsCell, wanted_contexts
from jobs.store import Ledger, Store
from lrp_core.contexts import Context, best_contexts, explain_context
from lrp_core.interventions.neurons import check_neuron
from lrp_core.neuron_names import NeuronNames
from lrp_core.types import UserError, nearest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from lrp_core import ModelView


class _Lines:
    """The contexts of a file's lines; lines that hold no text are counted, with where the first is."""

    def __init__(self, path: Path, tokenizer: Any, longest: int) -> None:
        self.corpus, self.tokenizer, self.longest = Corpus(TEXT.name, str(path)), tokenizer, longest
        self.texts, self.left_out, self.first = 0, 0, ""

    def __iter__(self) -> Iterator[list[int]]:
        for entry in entries(self.corpus):
            if isinstance(entry, Entry):
                self.texts += 1
                yield from (piece.ids for piece in pieces_of(self.tokenizer, [entry], self.longest))
            else:
                self.left_out += 1
                self.first = self.first or str(entry)


def _check_name(neuron: str) -> None:
    if not NeuronNames.is_name(neuron):
        raise UserError(f"--neuron is LAYER.NEURON, as 2.17, not {neuron!r}")


def _place_of(view: ModelView, neuron: str) -> tuple[int, int]:
    """The layer and the number of a neuron of this name. Raises UserError as `check_neuron`."""
    check_neuron(view, 0, 0)
    return view.neuron_names.neuron(neuron)


def show_contexts(
    model_id: str,
    neuron: str,
    corpus: Path,
    method: str,
    console: Console,
    *,
    top: int = 10,
    dtype: str = "float32",
    device: str = "cpu",
) -> None:
    """Print the `top` contexts of the neuron, LAYER.NEURON, in the lines of a text file.

    A context is at most 64 tokens of a line. Raises UserError for unknown models, methods, layers and neurons, and for
    a file that cannot be read or holds no text.
    """
    _check_name(neuron)
    resolved = resolve(ModelConfig.model_validate({"name": "model", "id": model_id}))
    tokenizer = load_tokenizer(resolved.config)
    view = open_view(resolved, dtype, device)
    layer, number = _place_of(view, neuron)
    lines = _Lines(corpus, tokenizer, min(LENGTH, view.max_length))
    best = best_contexts(view, lines, layer, number, top, apart=template_of(tokenizer))
    if not lines.texts:
        raise UserError(f"{corpus} holds no text")
    if lines.left_out:
        console.print(f"{lines.left_out} lines are empty or no text, the first is {lines.first}", markup=False)
    read = f"in {lines.texts} lines of {corpus.name}"
    console.print(f"{model_id}: neuron {neuron} {read}, explained by {method}", markup=False)
    for context in best:
        console.print(_shown(view, tokenizer, context, layer, number, method, bool(console.color_system)))


def show_kept(
    config: RunConfig,
    store: Store,
    neuron: str,
    method: str,
    console: Console,
    *,
    model: str | None = None,
    top: int = 10,
    device: str = "cpu",
) -> None:
    """Print the `top` contexts that a run has kept of the neuron, LAYER.NEURON, of one of its models.

    Raises UserError for what the run has not, and as `show_contexts`.
    """
    _check_name(neuron)
    ledger = Ledger(store)
    cell = _kept(config, ledger, model)
    resolved, record = cell.model.resolved, ledger.record(cell.artifact) or {}
    view = open_view(resolved, cell.artifact.dtype, device, config.seed)
    layer, number = _place_of(view, neuron)
    tokenizer = load_tokenizer(resolved.config)
    shard = record["shards"][layer]
    contexts, neurons = (f"{folder}/{shard}" for folder in cell.artifact.folders)
    (own,) = (row for row in store.read([neurons], ACTIVATIONS).to_pylist() if row["neuron"] == number)
    rows = store.read([contexts], CONTEXTS)
    console.print(
        f"{cell.model.name}: neuron {neuron} in {record['corpus']['survey']['texts']:,} texts of {cell.artifact.task}, "
        f"explained by {method}; mean {own['mean'] or 0:+.3f} over {own['tokens']:,} tokens",
        markup=False,
    )
    for row in rows.filter(pc.equal(rows["neuron"], number)).to_pylist()[:top]:
        context = Context(row["activation"], -row["rank"], row["position"], tuple(row["input_ids"]))
        line = _shown(view, tokenizer, context, layer, number, method, bool(console.color_system))
        console.print(line + Text(f"  {row['place']}", style="dim"))


def _kept(config: RunConfig, ledger: Ledger, model: str | None) -> ContextsCell:
    """The contexts of the model, or of the only one. Raises UserError."""
    cells = {cell.model.name: cell for cell in wanted_contexts(config, make_plan(config, ledger.store), ledger)}
    done = {name: cell for name, cell in cells.items() if ledger.is_done(cell.artifact)}
    if not done:
        raise UserError(f"{ledger.store.root} has no contexts: set `neurons.corpus` and run `closelook neurons`")
    if model is None and len(done) > 1:
        raise UserError(f"say which model: --model {' or '.join(done)}")
    name = model or next(iter(done))
    if name not in done:
        raise UserError(f"no contexts of a model {name!r} in {ledger.store.root}{nearest(name, done)}")
    return done[name]


def _shown(
    view: ModelView,
    tokenizer: PreTrainedTokenizerBase,
    context: Context,
    layer: int,
    neuron: int,
    method: str,
    coloured: bool,
) -> Text:
    """A line of the context without what the tokenizer's template adds; without colours, its position in brackets."""
    values = explain_context(view, context, layer, neuron, method)
    apart = template_of(tokenizer)
    own = [at for at, token in enumerate(context.ids) if token not in apart]
    shown = pieces(tokenizer, [context.ids[at] for at in own])
    if coloured:
        said = terminal(shown, [values[at] for at in own])
    else:
        at = own.index(context.position)
        said = Text(f"{''.join(shown[:at])}[{shown[at]}]{''.join(shown[at + 1 :])}")
    return Text(f"{context.value:+.2f}  ") + said
