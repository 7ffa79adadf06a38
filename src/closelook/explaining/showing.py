"""Prints explained predictions: tokens in colours or with numbers, spans with shares."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from closelook import terminal
from closelook.evaluation.report.heatmaps.tokens import Line, in_digits, least
from closelook.evaluation.report.heatmaps.tokens import terminal as coloured
from closelook.explaining.explained import Explained
from closelook.explaining.heatmap import Lines, lines_of
from closelook.explaining.record import OF_NO_TOKEN, shares
from closelook.lrp_core.methods.record import Method
from closelook.terminal import not_finite, say

PATCHES = 6  # most relevant patches of an image that are shown
_WHOLE = 64  # longest text of an answer's prompt that is shown whole, in tokens
_STRONGEST = 8  # tokens that are shown of a longer one, the most relevant


def show_all(explained: Sequence[Explained], dtype: str, by_word: bool = False) -> None:
    """Print explained predictions, one by one; `by_word` joins the tokens of a word."""
    for each in explained:
        _show(each, dtype, by_word)


def _show(explained: Explained, dtype: str, by_word: bool) -> None:
    """Print the explained prediction, then one line for each method: tokens in colours, or with numbers."""
    of_methods = lines_of(explained, by_word)
    say(f"{explained.model}: why {explained.why} ({_number(explained)}){explained.note}")
    width = max(len(line.label) for line in of_methods.lines)
    for line, method in zip(of_methods.lines, explained.methods, strict=True):
        label = f"{line.label:{width}}  "
        if problem := _unshown(line, dtype):
            say(label + problem)
        elif explained.images is not None:
            say(label + _patches(explained, line))
        else:
            if explained.answer is not None:
                say(f"{label}{_shares(explained, method)}")
                label = " " * len(label)
            if low := least(line.values, of_methods.special):
                label += f"(the smallest, {low:.3g}, is white) " if terminal.console.color_system else ""
            say(Text(label) + _tokens(explained, of_methods, line))


def _unshown(line: Line, dtype: str) -> str:
    """The reason why a line of relevance is not shown; "" if it is."""
    if not line.finite:
        return not_finite(dtype)
    return "" if any((*line.values, *(line.decoder or ()))) else "nothing beyond rounding"


def _number(explained: Explained) -> str:
    """The explained number in words, such as "logit 2.10 against 1.30", "sum of 5 logits 9.71" or "score 0.82"."""
    logits = " against ".join(number.removeprefix("+") for logit in explained.logits for number in in_digits([logit]))
    summed = len(explained.view.span or ())
    if summed > 1:
        return f"sum of {summed} logits {logits}"
    return f"{'score' if explained.output == 'score' else 'logit'} {logits}"


def _shares(explained: Explained, method: Method) -> str:
    """The shares of the parts of the input in one line."""
    parts = [part for part in shares(explained, method) if part.part not in OF_NO_TOKEN or round(100 * part.share)]
    return " · ".join(f"{part.part} {part.share:.0%}" for part in parts)


def _tokens(explained: Explained, of_methods: Lines, line: Line) -> Text:
    """The tokens of a line in colours or with numbers and, after a bar, those that a decoder has read."""
    if len(of_methods.texts) > _WHOLE and explained.answer is not None:
        text = _strongest(of_methods.texts, line.values)
    elif terminal.console.color_system:
        text = coloured(of_methods.texts, line.values, special=of_methods.special)
    else:
        text = _numbers(of_methods.texts, line.values)
    if explained.decoder is not None and line.decoder is not None:
        text += Text(" | ") + _numbers(explained.decoder.tokens, line.decoder)
    return text


def _numbers(tokens: Sequence[str], values: Sequence[float]) -> Text:
    """Each token followed by its relevance."""
    numbers = in_digits(values)
    shown = [token.strip() or "␣" for token in tokens]
    return Text(" ".join(f"{token} {number}" for token, number in zip(shown, numbers, strict=True)))


def _largest(values: Sequence[float], count: int) -> list[int]:
    """The indices of the `count` values that are largest by magnitude."""
    return sorted(range(len(values)), key=lambda at: -abs(values[at]))[:count]


def _strongest(tokens: Sequence[str], values: Sequence[float]) -> Text:
    """The _STRONGEST tokens by magnitude of relevance with their numbers, in the order of the text."""
    chosen = sorted(_largest(values, _STRONGEST))
    return Text("… ") + _numbers([tokens[at] for at in chosen], [values[at] for at in chosen])


def _patches(explained: Explained, line: Line) -> str:
    """The most relevant patches of an image with their numbers."""
    largest = _largest(line.values, PATCHES)
    numbers = in_digits([line.values[at] for at in largest])
    return "; ".join(f"{explained.tokens[at]} {number}" for at, number in zip(largest, numbers, strict=True))
