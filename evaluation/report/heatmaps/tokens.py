"""Tokens coloured by relevance: the scale and the colours of the terminal and of HTML pages.

Orange is relevance towards the explained logit, blue is relevance against it; readers with any colour vision can tell
them apart. Special tokens are dim and do not set the scale. Pages underline evidence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import median
from typing import Any, NamedTuple

from rich.style import Style
from rich.text import Text

from closelook.evaluation.scoring.samples import NEAR_NOISE, NOISE, noise_of

POSITIVE, NEGATIVE, ZERO = (240, 138, 75), (106, 156, 219), (255, 255, 255)  # sRGB; black text is legible on each
Entry = Mapping[str, Any]  # of a sample, made by `data`
EntryLine = Mapping[str, Any]  # one of its rows
Marks = Sequence[bool] | None  # the tokens that are marked; None: none
EVERY_LABEL = "every label"  # the explanation of lines that explain each label of a classifier
FAINT = 0.04  # smaller shares of the scale are not painted
_MOST_DECIMALS = 6
_NOTHING = 1e-5  # share of the largest magnitude: smaller ones may be shown as 0


def scale(values: Sequence[float], special: Sequence[bool]) -> float:
    """The largest magnitude over ordinary tokens; over all tokens if that is zero, and 1 if all values are zero.

    Values that are not finite do not count.

    >>> scale([3.0, -0.5, 0.25], [True, False, False])
    0.5
    """
    finite = [(abs(value), dim) for value, dim in zip(values, special, strict=True) if math.isfinite(value)]
    of_ordinary = max((size for size, dim in finite if not dim), default=0)
    return of_ordinary or max((size for size, _ in finite), default=0) or 1.0


def least(values: Sequence[float], special: Sequence[bool]) -> float:
    """The magnitude that is shown as white: 0, or the smallest magnitude of ordinary tokens if all have one sign.

    In a map of one sign, such as of norms, differences are visible only so. A smallest magnitude of less than FAINT of
    the largest stays 0.
    """
    ordinary = [value for value, dim in zip(values, special, strict=True) if not dim and math.isfinite(value)]
    if not ordinary or min(ordinary) <= 0 <= max(ordinary):
        return 0.0
    low, high = min(map(abs, ordinary)), max(map(abs, ordinary))
    return low if FAINT * high <= low < high else 0.0


def share_of(value: float, high: float, low: float = 0.0) -> float:
    """A value as a share of the colour scale, in [-1, 1]: 0 (white) up to the magnitude `low`, full from `high` on."""
    magnitude = max(abs(value) - low, 0.0) / (high - low)
    return math.copysign(min(magnitude, 1.0), value)


def in_digits(values: Sequence[float]) -> list[str]:
    """Signed numbers as text, all with as many decimals: two, or more if small numbers need them.

    The largest magnitude shows at least two digits, and the median one at least one.

    >>> in_digits([3.061, -0.2]), in_digits([0.00123, -0.0001])
    (['+3.06', '-0.20'], ['+0.0012', '-0.0001'])
    >>> in_digits([31.4, 0.004, -0.002])
    ['+31.400', '+0.004', '-0.002']
    """
    magnitudes = [abs(value) for value in values if math.isfinite(value)]
    largest = max(magnitudes, default=0.0)
    digits = 2
    if largest:
        middle = median(magnitude for magnitude in magnitudes if magnitude > _NOTHING * largest)
        digits = max(digits, 1 - math.floor(math.log10(largest)), -math.floor(math.log10(middle)))
    form = f"+.{digits}f" if digits <= _MOST_DECIMALS else "+.1e"
    return [f"{value:{form}}" for value in values]


def rgb(share: float) -> tuple[int, ...]:
    """The colour (red, green, blue) of a value as a share of the scale, in [-1, 1]."""
    share = max(-1.0, min(1.0, share))
    end = POSITIVE if share > 0 else NEGATIVE
    return tuple(round(zero + (full - zero) * abs(share)) for zero, full in zip(ZERO, end, strict=True))


def colour(share: float) -> str:
    """The colour of :func:`rgb` in hex.

    >>> colour(1.0), colour(0.0), colour(-1.0)
    ('#f08a4b', '#ffffff', '#6a9cdb')
    """
    return "#" + bytes(rgb(share)).hex()


def ground(value: float, row: EntryLine, special: bool = False) -> str | None:
    """The colour behind a token of a line of :func:`data`; None if it is special, or too faint to paint."""
    share = share_of(value, row["scale"], row.get("low", 0.0))
    return None if special or abs(share) < FAINT else colour(share)


def terminal(tokens: Sequence[str], values: Sequence[float], special: Marks = None) -> Text:
    """A line of coloured tokens for the terminal (rich); `special` ones are dim.

    Tokens at the start of a word hold a leading space.
    """
    special = special or [False] * len(tokens)
    row, line = {"scale": scale(values, special), "low": least(values, special)}, Text()
    for token, value, dim in zip(tokens, values, special, strict=True):
        word, behind = token.lstrip(" "), ground(value, row, dim)
        line.append(" " * (len(token) - len(word)))
        style = Style(color=behind and "black", bgcolor=behind, dim=dim or None)
        line.append(word.replace("\n", "⏎"), style)
    return line


class Line(NamedTuple):
    """A line of a heat map: the relevance of every token under a method and an explanation."""

    label: str  # of the method
    values: Sequence[float]
    explanation: str = "none"  # "none" if there is only one
    decoder: Sequence[float] | None = None  # relevance of the tokens that the decoder of an encoder-decoder has seen
    of: str | None = None  # the explained label, in lines of EVERY_LABEL
    pixels: Sequence[float] | None = None  # [H * W] relevance of an image's pixels, for methods that give it

    @property
    def finite(self) -> bool:
        """True if all values are finite."""
        return all(map(math.isfinite, (*self.values, *(self.decoder or ()), *(self.pixels or ()))))


def beyond_noise(line: Line, logits: Sequence[float]) -> Line:
    """`line` with all values set to zero if they are rounding error, and a label that says so if they may be.

    The line's values sum to one of `logits`, or to their difference.
    """
    peak, logit = max(map(abs, line.values), default=0.0), max(map(abs, logits))
    if not line.finite or (peak and not logit):
        return line
    noise = noise_of(peak / logit if peak else 0.0)
    if noise == NOISE:
        return line._replace(values=[0.0] * len(line.values))
    return line._replace(label=f"{line.label} ({noise})") if noise == NEAR_NOISE else line


def data(
    tokens: Sequence[str],
    lines: Sequence[Line],
    evidence: Marks = None,
    special: Marks = None,
    scope: Marks = None,
    decoder: Sequence[str] | None = None,
    **facts: Any,
) -> dict[str, Any]:
    """The data of `heatmap.js` as JSON: the tokens, and the values (4 digits) and the scale of each line.

    If all values of a line have one sign, it also has the magnitude `low` that is white (see `least`).

    A line with values that are not finite says so in its label, and these values are drawn as zero. A line hits if its
    largest relevance is on `evidence`, as in the pointing game: over ordinary tokens in the `scope`, by default all.
    `decoder` are the tokens that the decoder of an encoder-decoder has seen. `facts` are shown above the lines: text,
    slot, target, foil, task, model, correct, margin, attractors, sample_id.
    """
    plain = [False] * len(tokens)
    evidence, special = evidence or plain, special or plain
    counted = [inside and not dim for inside, dim in zip(scope or [True] * len(tokens), special, strict=True)]
    rows = []
    for line in lines:
        label = line.label if line.finite else f"{line.label} (not finite)"
        row: dict[str, Any] = {"label": label, "explanation": line.explanation, "scale": scale(line.values, special)}
        if low := least(line.values, special):
            row["low"] = low
        row["values"] = _all_short(line.values)
        if not line.finite:
            row["finite"] = False
        if line.decoder is not None:
            row["decoder"] = _all_short(line.decoder)
        if line.of is not None:
            row["of"] = line.of
        if any(evidence):
            row["hit"] = int(line.finite and evidence[_top(line.values, counted)])
        rows.append(row)
    unknown = dict.fromkeys(("task", "model", "foil", "correct", "attractors", "margin", "position", "sample_id"), None)
    known = {"text": "", "slot": 0, "target": "", "disagreement": disagreement(lines, counted)}
    marks = {"evidence": [int(mark) for mark in evidence], "special": [int(mark) for mark in special]}
    seen = {} if decoder is None else {"decoder": list(decoder)}
    return {"tokens": list(tokens), "rows": rows, **marks, **seen, **unknown, **known, **facts}


def _all_short(values: Sequence[float]) -> list[float]:
    """Values with four significant digits; 0 for values that are not finite."""
    return [short(value) if math.isfinite(value) else 0.0 for value in values]


def short(value: float) -> float:
    """A number rounded to four significant digits.

    >>> short(0.123456)
    0.1235
    """
    return float(f"{value:.4g}")


def disagreement(lines: Sequence[Line], counted: Sequence[bool]) -> float:
    """The share of pairs of methods whose largest relevance is on different tokens.

    `counted` are the tokens that may be the largest. Of several lines of a method, the first counts.
    """
    tops = list({line.label: _top(line.values, counted) for line in reversed(lines)}.values())
    pairs = list(combinations(tops, 2))
    return sum(a != b for a, b in pairs) / len(pairs) if pairs else 0.0


def _top(values: Sequence[float], counted: Sequence[bool]) -> int:
    """The index of the largest relevance among the counted tokens; among all tokens if none is counted."""
    tokens = [at for at, counts in enumerate(counted) if counts] or range(len(values))
    return max(tokens, key=lambda at: values[at])
