"""One text, one prediction or several in a row, explained in the terminal, on a page and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.style import Style
from rich.text import Text

from evaluation.report.heatmap import Line, colour, scale, terminal
from evaluation.report.page import Provenance, explain_page
from jobs.commands.answers import Answer, answers, entry, exported, grouped, lines_of
from jobs.commands.conservation import print_layers
from jobs.commands.opened import Opened, open_model
from jobs.commands.question import Question
from jobs.commands.terminal import as_json, not_finite, write_file
from jobs.typed import every_typed
from jobs.versions import versions
from lrp_core.method import Method

PATCHES = 6  # of an image, that a terminal without colours is told of


def explain(
    question: Question,
    model_id: str,
    names: str,
    console: Console,
    *,
    html: Path | None = None,
    json_file: Path | None = None,
    by_word: bool = False,
    layers: bool = False,
    dtype: str = "float32",
    device: str = "cpu",
    family: str | None = None,
    adapter: str | None = None,
    decoder_tokenizer: str | None = None,
) -> None:
    """Print the tokens coloured by what speaks for the target (rather than the foil), a line a method.

    `names` are methods, with their options, as `jobs.typed` reads them. Where there are no colours, the numbers are
    printed; `by_word` sums the relevance of a word's pieces, `layers` also prints what becomes of it layer by layer;
    `family` "generic" explains a model that no family describes, `adapter` is a LoRA adapter of it,
    `decoder_tokenizer` writes an encoder-decoder's answer where another reads its text. Raises UserError for unknown
    models and methods, for words that are not one token of the model's, for questions that a model or method has no
    answer to, and for files that cannot be written.
    """
    methods = every_typed(names)
    opened = open_model(model_id, dtype, device, family, adapter, decoder_tokenizer)
    finer = {"boundaries": True} if layers else {}
    answered = list(answers(question, opened, methods, **finer))
    for one in answered:
        show(one, methods, opened, console, by_word)
        for name, relevance in one.relevance.items() if layers else ():
            if relevance.finite.all():
                print_layers(console, name, relevance)
            else:
                console.print(f"{name}: what crosses its layers is {not_finite(dtype)}", markup=False)
    provenance = Provenance("explain", "", versions(), models=[(model_id, opened.resolved.identity)])
    if html is not None:
        entries = [entry(one, methods, question, model_id, by_word, at) for at, one in enumerate(answered)]
        title = f"{model_id}: {' '.join(one.what + one.told for one in answered)}"
        _write(html, explain_page(entries, title, provenance), console)
    if json_file is not None:
        _write(json_file, as_json(exported(question, opened, answered)), console)


def show(one: Answer, methods: Sequence[Method], opened: Opened, console: Console, by_word: bool = False) -> None:
    """What is explained, then a line a method: its tokens in colours, or with numbers where there are no colours.

    Behind the tokens of an encoder stands what its decoder has seen, where the method speaks of that, with numbers.
    """
    tokens, special, shown = one.tokens, one.row["special_mask"], lines_of(one, methods)
    if by_word:
        tokens, special, shown = grouped(one, methods, shown)
    logits = f"{one.number} " + " against ".join(f"{logit:.2f}" for logit in one.logits)
    console.print(f"{opened.id}: why {one.what} ({logits}){one.told}", markup=False)
    width = max(len(line.label) for line in shown)
    for line in shown:
        if not line.finite:
            console.print(f"{line.label:{width}}  {not_finite(opened.dtype)}", markup=False)
            continue
        if not any(line.values):
            console.print(f"{line.label:{width}}  nothing beyond rounding", markup=False)
            continue
        if one.images is not None:
            _show_patches(one, line, width, console)
            continue
        told = Text(f"{line.label:{width}}  ")
        coloured = terminal(tokens, line.values, special=special)
        told += coloured if console.color_system else _numbers(tokens, line.values)
        if one.decoder is not None and line.decoder is not None:
            told += Text(" | ", "dim") + _numbers(one.decoder, line.decoder)
        console.print(told)


def _numbers(tokens: Sequence[str], values: Sequence[float]) -> Text:
    return Text(" ".join(f"{token.strip()} {value:+.2f}" for token, value in zip(tokens, values, strict=True)))


def _show_patches(one: Answer, line: Line, width: int, console: Console) -> None:
    """The patches as coloured cells, two letters wide, row under row; without colours, the largest of them."""
    assert one.images is not None
    rows, columns = one.images.grid
    if not console.color_system:
        largest = sorted(range(len(line.values)), key=lambda at: -abs(line.values[at]))[:PATCHES]
        named = "; ".join(f"{one.tokens[at]} {line.values[at]:+.2f}" for at in largest)
        console.print(f"{line.label:{width}}  {named}", markup=False)
        return
    unit = scale(line.values, one.row["special_mask"])
    for row in range(rows):
        values = line.values[1 + row * columns : 1 + (row + 1) * columns]
        cells = [Text("  ", Style(bgcolor=colour(value / unit))) for value in values]
        console.print(Text(f"{line.label if row == 0 else '':{width}}  ").append_text(Text().join(cells)))


def _write(path: Path, text: str, console: Console) -> None:
    write_file(path, text)
    console.print(f"written to {path}", markup=False)
