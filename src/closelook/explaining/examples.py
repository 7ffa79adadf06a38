"""The max-activating examples of a neuron in a file of texts, coloured by relevance for its activation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.text import Text

from closelook import terminal
from closelook.evaluation.benchmark.corpus import LENGTH, Corpus, Entry, entries, pieces_of, template_of
from closelook.evaluation.benchmark.encoding import pieces
from closelook.evaluation.benchmark.sources.text import TEXT
from closelook.evaluation.report.heatmaps.tokens import terminal as coloured
from closelook.explaining.opening import Opened
from closelook.lrp_core.interventions.neurons import check_neuron
from closelook.lrp_core.neurons.contexts import Context, best_contexts, explain_context
from closelook.lrp_core.parts.neuron_names import NeuronNames
from closelook.lrp_core.records.types import UserError
from closelook.terminal import say


@dataclass
class _Passages:
    """The passages of a file with one text a line, and counts of its lines."""

    path: Path
    texts: int = 0  # lines that were read as texts
    left_out: int = 0  # lines without a text
    first: str = ""  # the first line without a text, and why it has none

    def ids(self, opened: Opened) -> Iterator[list[int]]:
        """The token ids of each passage: texts are cut into passages of up to LENGTH tokens. Counts the lines."""
        longest = min(LENGTH, opened.view.max_length)
        for entry in entries(Corpus(TEXT.name, str(self.path))):
            if isinstance(entry, Entry):
                self.texts += 1
                yield from (piece.ids for piece in pieces_of(opened.tokenizer, [entry], longest))
            else:
                self.left_out += 1
                self.first = self.first or str(entry)


def check_name(neuron: str) -> None:
    """Raise UserError unless `neuron` has the form of a neuron's name."""
    if not NeuronNames.is_name(neuron):
        form = "LAYER.NEURON, as 2.17 (LAYER.EXPERT.NEURON in a mixture of experts)"
        raise UserError(f"the name of a neuron must be {form}, not {neuron!r}")


@dataclass(frozen=True)
class ExplainedNeuron:
    """A neuron of a model, with the method that explains its activation."""

    opened: Opened
    layer: int
    number: int
    method: str

    @classmethod
    def named(cls, opened: Opened, name: str, method: str) -> ExplainedNeuron:
        """The neuron of this name. Raises UserError if the model has no such neuron."""
        check_neuron(opened.view, 0, 0)
        return cls(opened, *opened.view.neuron_names.neuron(name), method)

    def line(self, context: Context) -> Text:
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


def show_examples(opened: Opened, name: str, corpus: Path, method: str, top: int) -> None:
    """Print the `top` max-activating examples of the neuron `name` (LAYER.NEURON) in a file with one text a line.

    A passage is at most LENGTH tokens of a line. Raises UserError for an unknown method or neuron, a model of images,
    and a file that cannot be read or holds no text.
    """
    check_name(name)
    if opened.kind.images:
        raise UserError(f"{opened.id} reads images: `closelook examples` reads texts")
    neuron, passages = ExplainedNeuron.named(opened, name, method), _Passages(corpus)
    template = template_of(opened.tokenizer)
    best = best_contexts(opened.view, passages.ids(opened), neuron.layer, neuron.number, top, apart=template)
    if not passages.texts:
        raise UserError(f"{corpus} holds no text: it needs one text a line")
    if passages.left_out:
        say(f"{passages.left_out} lines hold no text; the first of them is {passages.first}")
    say(f"{opened.id}: neuron {name} in {passages.texts} lines of {corpus.name}, explained by {method}")
    for context in best:
        say(neuron.line(context))
