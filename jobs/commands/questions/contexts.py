"""`closelook examples`: a neuron's max-activating examples, coloured by relevance for its activation.

They are searched in a file, or read from a run that has searched a corpus for every neuron.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.compute as pc
from rich.text import Text

from closelook import terminal
from closelook.evaluation.benchmark.corpus import LENGTH, Corpus, Entry, entries, pieces_of, template_of
from closelook.evaluation.benchmark.encoding import pieces
from closelook.evaluation.benchmark.sources.text import TEXT
from closelook.evaluation.report.heatmaps.tokens import terminal as coloured
from closelook.evaluation.schema import ACTIVATIONS, CONTEXTS
from closelook.jobs.commands.questions.opened import Opened, chosen_device
from closelook.jobs.config import RunConfig
from closelook.jobs.plan.cells import make_plan
from closelook.jobs.plan.models import load_tokenizer
from closelook.jobs.plan.node import Run
from closelook.jobs.products.neurons.contexts import ContextsNode, nodes
from closelook.jobs.store import Ledger, Store
from closelook.lrp_core.interventions.neurons import check_neuron
from closelook.lrp_core.neurons.contexts import Context, best_contexts, explain_context
from closelook.lrp_core.parts.neuron_names import NeuronNames
from closelook.lrp_core.records.types import UserError, nearest
from closelook.terminal import say


@dataclass
class _Lines:
    """The passages of a file with one text a line, and counts of its lines."""

    path: Path
    texts: int = 0  # lines that were read as texts
    left_out: int = 0  # lines without a text
    first: str = ""  # the first line without a text, and why it has none

    def contexts(self, opened: Opened) -> Iterator[list[int]]:
        """The token ids of each passage: texts are cut into passages of up to LENGTH tokens. Counts the lines."""
        longest = min(LENGTH, opened.view.max_length)
        for entry in entries(Corpus(TEXT.name, str(self.path))):
            if isinstance(entry, Entry):
                self.texts += 1
                yield from (piece.ids for piece in pieces_of(opened.tokenizer, [entry], longest))
            else:
                self.left_out += 1
                self.first = self.first or str(entry)


@dataclass(frozen=True)
class _Neuron:
    """A neuron of a model, with the method that explains its activation."""

    opened: Opened
    layer: int
    number: int
    method: str

    @classmethod
    def of(cls, opened: Opened, name: str, method: str) -> _Neuron:
        """The neuron of this name. Raises UserError if the model has no such neuron."""
        check_neuron(opened.view, 0, 0)
        return cls(opened, *opened.view.neuron_names.neuron(name), method)

    def shown(self, context: Context) -> Text:
        """A passage in one line: the activation, then the tokens without special ones, coloured by relevance.

        Without colours, brackets mark the token at which the neuron is most active.
        """
        values = explain_context(self.opened.view, context, self.layer, self.number, self.method)
        template = template_of(self.opened.tokenizer)
        kept = [at for at, token in enumerate(context.ids) if token not in template]
        texts = pieces(self.opened.tokenizer, [context.ids[at] for at in kept])
        if terminal.console.color_system:
            line = coloured(texts, [values[at] for at in kept])
        else:
            at = kept.index(context.position)
            line = Text(f"{''.join(texts[:at])}[{texts[at]}]{''.join(texts[at + 1 :])}")
        return Text(f"{context.value:+.2f}  ") + line


def _check_name(neuron: str) -> None:
    """Raise UserError unless `neuron` has the form of a neuron's name."""
    if not NeuronNames.is_name(neuron):
        raise UserError(
            "the name of a neuron must be LAYER.NEURON, as 2.17 (LAYER.EXPERT.NEURON in a mixture of experts), "
            f"not {neuron!r}"
        )


def show_contexts(opened: Opened, name: str, corpus: Path, method: str, top: int) -> None:
    """Print the `top` max-activating examples of the neuron `name` (LAYER.NEURON) in a file with one text a line.

    A passage is at most LENGTH tokens of a line. Raises UserError for an unknown method or neuron, a model of images,
    and a file that cannot be read or holds no text.
    """
    _check_name(name)
    if opened.resolved.kind.images:
        raise UserError(f"{opened.id} reads images: `closelook examples` reads texts")
    neuron, lines = _Neuron.of(opened, name, method), _Lines(corpus)
    contexts, template = lines.contexts(opened), template_of(opened.tokenizer)
    best = best_contexts(opened.view, contexts, neuron.layer, neuron.number, top, apart=template)
    if not lines.texts:
        raise UserError(f"{corpus} holds no text: it needs one text a line")
    if lines.left_out:
        say(f"{lines.left_out} lines hold no text; the first of them is {lines.first}")
    say(f"{opened.id}: neuron {name} in {lines.texts} lines of {corpus.name}, explained by {method}")
    for context in best:
        say(neuron.shown(context))


def show_kept(
    config: RunConfig, store: Store, name: str, method: str, model: str | None, top: int, device: str
) -> None:
    """Print the `top` max-activating examples that a run has stored for the neuron `name` (LAYER.NEURON) of a model.

    Raises UserError if the run has none of the model, and as :func:`show_contexts` does.
    """
    _check_name(name)
    ledger = Ledger(store)
    cell = _kept(config, ledger, model)
    artifact, resolved, record = cell.artifact, cell.plan.resolved, ledger.record(cell.artifact) or {}
    tokenizer = load_tokenizer(resolved.config)
    opened = Opened(cell.plan.name, resolved, tokenizer, artifact.dtype, chosen_device(device), seed=config.seed)
    neuron = _Neuron.of(opened, name, method)
    shard = record["shards"][neuron.layer]
    contexts, activations = (f"{folder}/{shard}" for folder in artifact.folders)
    table = store.read([activations], ACTIVATIONS)
    (activity,) = table.filter(pc.equal(table["neuron"], neuron.number)).to_pylist()
    texts, mean = record["corpus"]["survey"]["texts"], activity["mean"] or 0
    say(
        f"{opened.id}: neuron {name} in {texts:,} texts of {artifact.task}, explained by {method}; "
        f"mean {mean:+.3f} over {activity['tokens']:,} tokens"
    )
    table = store.read([contexts], CONTEXTS)
    for row in table.filter(pc.equal(table["neuron"], neuron.number)).to_pylist()[:top]:
        context = Context(row["activation"], -row["rank"], row["position"], tuple(row["input_ids"]))
        say(neuron.shown(context) + Text(f"  {row['place']}", style="dim"))


def _kept(config: RunConfig, ledger: Ledger, model: str | None) -> ContextsNode:
    """The complete node of max-activating examples of `model`; None: of the only model that has them.

    Raises UserError if there is none, or several and no `model`.
    """
    done = {}
    for cell in nodes(Run(config, make_plan(config, ledger.store), ledger)):
        if ledger.is_done(cell.artifact):
            done[cell.plan.name] = cell
    if not done:
        raise UserError(
            f"{ledger.store.root} has no max-activating examples: set `neurons.corpus` and run `closelook neurons`"
        )
    if model is None and len(done) > 1:
        raise UserError(f"say which model: --model {' or '.join(done)}")
    name = model or next(iter(done))
    if name not in done:
        raise UserError(f"no max-activating examples of model {name!r} in {ledger.store.root}{nearest(name, done)}")
    return done[name]
