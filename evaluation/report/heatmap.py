"""Tokens coloured by relevance: one scale and one palette for the terminal and for HTML pages.

Colours diverge from zero, orange towards the explained logit and blue against it, a pair that readers with
any colour vision can tell apart. Special tokens are dimmed and do not set the scale; evidence is underlined.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import Any, NamedTuple

from rich.style import Style
from rich.text import Text

from evaluation.scoring.samples import NOISE

POSITIVE, NEGATIVE, ZERO = (240, 138, 75), (106, 156, 219), (255, 255, 255)  # sRGB; black on any of them is legible
START = "‹start›"  # what a decoder sees first, by whatever token
EVERY_LABEL = "every label"  # the explanation of lines that speak of one label of a classifier each
FAINT = 0.04  # below this share of the scale nothing is painted


def scale(values: Sequence[float], special: Sequence[bool]) -> float:
    """The largest magnitude over ordinary tokens (over all if those are zero); 1 where everything is zero."""
    ordinary = [abs(value) for value, dim in zip(values, special, strict=True) if not dim and math.isfinite(value)]
    return max(ordinary, default=0) or max((abs(value) for value in values if math.isfinite(value)), default=0) or 1.0


def colour(share: float) -> str:
    """#rrggbb of a value as a share of the scale, in [-1, 1]."""
    share = max(-1.0, min(1.0, share))
    end = POSITIVE if share > 0 else NEGATIVE
    return "#" + "".join(f"{round(z + (e - z) * abs(share)):02x}" for z, e in zip(ZERO, end, strict=True))


def terminal(
    tokens: Sequence[str],
    values: Sequence[float],
    evidence: Sequence[bool] | None = None,
    special: Sequence[bool] | None = None,
) -> Text:
    """One line for rich. Tokens that start a word hold their leading space; no marks mean none."""
    evidence, special = evidence or [False] * len(tokens), special or [False] * len(tokens)
    unit = scale(values, special)
    line = Text()
    for token, value, marked, dim in zip(tokens, values, evidence, special, strict=True):
        word = token.lstrip(" ")
        line.append(" " * (len(token) - len(word)))
        painted = not dim and abs(value) / unit >= FAINT
        style = Style(
            color="black" if painted else None,
            bgcolor=colour(value / unit) if painted else None,
            underline=marked or None,
            dim=dim or None,
        )
        line.append(word.replace("\n", "⏎"), style)
    return line


class Line(NamedTuple):
    """One line of a heatmap page: a method's relevance of every token, for one explanation (none: the only one)."""

    label: str
    values: Sequence[float]
    explanation: str = "none"
    curve: LogitCurve | None = None  # where tokens were taken away in this order
    decoder: Sequence[float] | None = None  # of an encoder-decoder: relevance of what the decoder has seen
    of: str | None = None  # of a classifier, among the lines of EVERY_LABEL: the label that is explained
    pixels: Sequence[float] | None = None  # [H * W] of an image, of methods that reach its pixels

    @property
    def finite(self) -> bool:
        return all(map(math.isfinite, (*self.values, *(self.decoder or ()), *(self.pixels or ()))))


class LogitCurve(NamedTuple):
    """The target's logit as tokens go: the most relevant first, and the least."""

    removed: Sequence[int]
    morf: Sequence[float]
    lerf: Sequence[float]
    delta: float  # the difference of the areas


def beyond_noise(line: Line, logits: Sequence[float]) -> Line:
    """`line`, which shares out one of these logits or their difference; all zero where it has nothing but rounding."""
    rounding = NOISE * max(map(abs, logits))
    return line._replace(values=[0.0] * len(line.values)) if all(abs(v) <= rounding for v in line.values) else line


def data(
    tokens: Sequence[str],
    lines: Sequence[Line],
    evidence: Sequence[bool] | None = None,
    special: Sequence[bool] | None = None,
    scope: Sequence[bool] | None = None,
    decoder: Sequence[str] | None = None,
    **facts: Any,
) -> dict[str, Any]:
    """The data of `heatmap.js`: the tokens once, and for each line its values (4 digits) and scale.
    A line whose values are not finite says so, and is drawn without them.

    Whether a line points at evidence is told over ordinary tokens in the `scope` (all by default), as the pointing game
    does. `decoder` are the tokens that the decoder of an encoder-decoder has seen, of :func:`seen`. `facts` stand
    above: text, slot, target, foil, task, model, correct, margin, attractors, sample_id.
    """
    plain = [False] * len(tokens)
    evidence, special = evidence or plain, special or plain
    counted = [inside and not dim for inside, dim in zip(scope or [True] * len(tokens), special, strict=True)]
    rows = []
    for line in lines:
        label = line.label if line.finite else f"{line.label} (not finite)"
        row: dict[str, Any] = {"label": label, "explanation": line.explanation, "scale": scale(line.values, special)}
        row["values"] = _short(line.values)
        if not line.finite:
            row["finite"] = False
        if line.decoder is not None:
            row["decoder"] = _short(line.decoder)
        if line.of is not None:
            row["of"] = line.of
        if any(evidence):
            row["hit"] = int(line.finite and evidence[_top(line.values, counted)])
        if line.curve is not None:
            row["curve"] = _rounded(line.curve)
        rows.append(row)
    unknown = dict.fromkeys(("task", "model", "foil", "correct", "attractors", "margin", "position", "sample_id"), None)
    known = {"text": "", "slot": 0, "target": "", "disagreement": disagreement(lines, counted)}
    marks = {"evidence": [int(mark) for mark in evidence], "special": [int(mark) for mark in special]}
    seen = {} if decoder is None else {"decoder": list(decoder)}
    return {"tokens": list(tokens), "rows": rows, **marks, **seen, **unknown, **known, **facts}


def _short(values: Sequence[float]) -> list[float]:
    """Four digits of each."""
    return [float(f"{value:.4g}") if math.isfinite(value) else 0.0 for value in values]


def _rounded(curve: LogitCurve) -> dict[str, Any]:
    """Four digits of each logit; JSON knows no NaN, which is null there."""

    def short(value: float) -> float | None:
        return float(f"{value:.4g}") if math.isfinite(value) else None

    orders = {name: list(map(short, getattr(curve, name))) for name in ("morf", "lerf")}
    return {"removed": list(curve.removed), **orders, "delta": short(curve.delta)}


def disagreement(lines: Sequence[Line], counted: Sequence[bool]) -> float:
    """Share of pairs of methods whose largest relevance is on different tokens; the first line of a method counts."""
    tops = list({line.label: _top(line.values, counted) for line in reversed(lines)}.values())
    pairs = list(combinations(tops, 2))
    return sum(a != b for a, b in pairs) / len(pairs) if pairs else 0.0


def pieces(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """The text of each token; one that starts a word holds its leading space, whatever the tokenizer's own notation."""
    texts = [tokenizer.decode([token]) for token in ids]
    for at in range(1, len(ids)):
        together = tokenizer.decode(list(ids[at - 1 : at + 1]))
        before = tokenizer.decode([ids[at - 1]])
        if together.startswith(before):  # not so inside a character that spans tokens
            texts[at] = together[len(before) :]
    return texts


def seen(tokenizer: Any, said: Sequence[int]) -> list[str]:
    """The input of a decoder that has `said` these tokens: the start token, then the text of each."""
    return [START, *pieces(tokenizer, said)]


def words(tokens: Sequence[str], special: Sequence[bool]) -> list[list[int]]:
    """Indices of the tokens of each word, in order: `pieces` that start with a space, or special tokens, start one."""
    groups: list[list[int]] = []
    for at, (token, alone) in enumerate(zip(tokens, special, strict=True)):
        begins = token[:1].isspace() or alone or special[at - 1] or not groups
        groups += [[at]] if begins else []
        if not begins:
            groups[-1].append(at)
    return groups


def _top(values: Sequence[float], counted: Sequence[bool]) -> int:
    """The index of the largest relevance of the counted tokens."""
    return max([at for at, counts in enumerate(counted) if counts] or range(len(values)), key=lambda at: values[at])
