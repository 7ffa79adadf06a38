"""The texts of a file in which one neuron is most active, in the terminal, coloured by what makes it so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from evaluation.report.heatmap import pieces, terminal
from jobs.config import ModelConfig
from jobs.plan.models import load_tokenizer, open_view, resolve
from lrp_core.contexts import best_contexts, explain_context
from lrp_core.types import UserError

_LONGEST = 64  # tokens of a context; longer lines are cut into several


class _Lines:
    """The texts of a file; lines that hold none are counted, with the first one's number."""

    def __init__(self, path: Path, tokenizer: Any, longest: int) -> None:
        self.path, self.tokenizer, self.longest = path, tokenizer, longest
        self.texts, self.left_out, self.first = 0, 0, 0

    def __iter__(self) -> Iterator[list[int]]:
        try:
            with open(self.path, "rb") as file:
                for number, raw in enumerate(file, start=1):
                    yield from self._of(number, raw)
        except OSError as error:
            raise UserError(f"cannot read {self.path}: {error.strerror}") from None

    def _of(self, number: int, raw: bytes) -> Iterator[list[int]]:
        try:
            text = raw.decode().strip()
        except UnicodeDecodeError:
            text = ""
        if not text or "\0" in text:
            self.left_out += 1
            self.first = self.first or number
            return
        self.texts += 1
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        for start in range(0, len(ids), self.longest):
            yield ids[start : start + self.longest]


def show_contexts(
    model_id: str,
    place: str,
    corpus: Path,
    method: str,
    console: Console,
    *,
    top: int = 10,
    dtype: str = "float32",
    device: str = "cpu",
) -> None:
    """Print the `top` contexts of the neuron `place`, LAYER.NEURON, in the lines of a text file.

    A context is at most 64 tokens of a line. Raises UserError for unknown models, methods, layers and neurons, and for
    a file that cannot be read or holds no text.
    """
    layer, _, neuron = place.partition(".")
    if not (layer.isdigit() and neuron.isdigit()):
        raise UserError(f"--neuron is LAYER.NEURON, as 2.17, not {place!r}")
    resolved = resolve(ModelConfig.model_validate({"name": "model", "id": model_id}))
    tokenizer = load_tokenizer(resolved.config)
    view = open_view(resolved, dtype, device)
    lines = _Lines(corpus, tokenizer, min(_LONGEST, view.max_length))
    found = best_contexts(view, lines, int(layer), int(neuron), top)
    if not lines.texts:
        raise UserError(f"{corpus} holds no text")
    if lines.left_out:
        console.print(f"{lines.left_out} lines are empty or no text, the first is {lines.first}", markup=False)
    console.print(
        f"{model_id}: neuron {place} in {lines.texts} lines of {corpus.name}, explained by {method}", markup=False
    )
    for one in found:
        shown = pieces(tokenizer, one.ids)
        values = explain_context(view, one, int(layer), int(neuron), method)
        if console.color_system:
            said = terminal(shown, values)
        else:
            before, after = "".join(shown[: one.position]), "".join(shown[one.position + 1 :])
            said = Text(f"{before}[{shown[one.position]}]{after}")
        console.print(Text(f"{one.value:+.2f}  ") + said)
