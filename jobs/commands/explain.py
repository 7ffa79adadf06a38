"""One text, one prediction or several in a row, explained in the terminal, on a page and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.style import Style
from rich.text import Text

from evaluation.report.heatmap import Line, colour, scale
from evaluation.report.heatmap import terminal as coloured
from evaluation.report.page import Provenance, explain_page
from jobs.commands import terminal
from jobs.commands.answers import Answer, answers, exported
from jobs.commands.conservation import print_layers
from jobs.commands.opened import Opened
from jobs.commands.question import Question
from jobs.commands.terminal import as_json, not_finite, say, write_file
from jobs.versions import versions
from lrp_core.method import Method

PATCHES = 6  # of an image, that a terminal without colours shows


def explain(
    question: Question,
    opened: Opened,
    methods: Sequence[Method],
    by_word: bool = False,
    layers: bool = False,
    html: Path | None = None,
    json_file: Path | None = None,
) -> None:
    """Print the tokens coloured by their relevance for the target (rather than the foil), a line a method.

    Without colours the numbers are printed; `by_word` sums the relevance of a word's pieces, `layers` also prints the
    sums of relevance layer by layer. Raises UserError for words that are not one token of the model's, for questions
    that a model or method has no answer to, and for files that cannot be written.
    """
    finer = {"boundaries": True} if layers else {}
    answered = list(answers(question, opened, methods, **finer))
    for answer in answered:
        show(answer, by_word)
        for name, relevance in answer.relevance.items() if layers else ():
            if relevance.finite.all():
                print_layers(name, relevance)
            else:
                say(f"{name}: what crosses its layers is {not_finite(opened.dtype)}")
    if html is not None:
        provenance = Provenance("explain", "", versions(), models=[(opened.id, opened.resolved.identity)])
        title = f"{opened.id}: {' '.join(answer.what + answer.space for answer in answered)}"
        write_file(html, explain_page([answer.entry(by_word) for answer in answered], title, provenance))
    if json_file is not None:
        write_file(json_file, as_json(exported(question, opened, answered)))


def show(answer: Answer, by_word: bool = False) -> None:
    """Print the explained prediction, then a line a method: its tokens in colours, or with numbers without colours.

    Behind the tokens of an encoder stand those that its decoder has seen, where the method gives their relevance, with
    numbers.
    """
    tokens, special, lines = answer.lines(by_word)
    opened = answer.opened
    number = "score" if opened.resolved.output == "score" else "logit"
    logits = " against ".join(f"{logit:.2f}" for logit in answer.logits)
    say(f"{opened.id}: why {answer.what} ({number} {logits}){answer.space}")
    width = max(len(line.label) for line in lines)
    for line in lines:
        label = f"{line.label:{width}}  "
        if not line.finite:
            say(label + not_finite(opened.dtype))
        elif not any(line.values):
            say(f"{label}nothing beyond rounding")
        elif answer.images is not None:
            _show_patches(answer, line, label)
        else:
            text = Text(label)
            if terminal.console.color_system:
                text += coloured(tokens, line.values, special=special)
            else:
                text += _numbers(tokens, line.values)
            if answer.decoder is not None and line.decoder is not None:
                text += Text(" | ", "dim") + _numbers(answer.decoder, line.decoder)
            say(text)


def _numbers(tokens: Sequence[str], values: Sequence[float]) -> Text:
    return Text(" ".join(f"{token.strip()} {value:+.2f}" for token, value in zip(tokens, values, strict=True)))


def _show_patches(answer: Answer, line: Line, label: str) -> None:
    """Print the patches as coloured cells, two letters wide, row under row; without colours, the largest of them."""
    if not terminal.console.color_system:
        largest = sorted(range(len(line.values)), key=lambda at: -abs(line.values[at]))[:PATCHES]
        say(label + "; ".join(f"{answer.tokens[at]} {line.values[at]:+.2f}" for at in largest))
        return
    assert answer.images is not None
    rows, columns = answer.images.grid
    unit = scale(line.values, answer.row["special_mask"])
    for row in range(rows):
        text = Text(label if row == 0 else " " * len(label))
        for value in line.values[1 + row * columns : 1 + (row + 1) * columns]:
            text.append("  ", Style(bgcolor=colour(value / unit)))
        say(text)
