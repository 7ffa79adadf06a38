"""A printable sheet about the decision on a single text, from rows by word.

Shapes: W words of a case.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
from markupsafe import Markup

from closelook.evaluation.explained.rows import DECODER, SECOND, TEXT
from closelook.evaluation.report.heatmaps.markup import strip
from closelook.evaluation.report.heatmaps.tokens import in_digits, least, scale
from closelook.evaluation.report.page import Provenance, page_alone

_STRONGEST = 6  # most words for, and against, a decision by each method on a sheet
_OF_ALL = 16  # such words on a sheet, shared by its methods; each method has at least two
_WHOLE = 1_600  # most characters of a text on a sheet; a longer text is cut to the surroundings of relevant words
_AROUND = 8  # words shown on either side of a relevant word


class Word(NamedTuple):
    """A word of a text: the characters [start, end) of its side, or None for a word without characters there."""

    word: str
    side: str
    start: int | None
    end: int | None
    special: bool  # True for a token that the tokenizer's template added

    @property
    def is_counted(self) -> bool:
        """True for a word of the text itself with a letter or digit: it counts in rankings."""
        return not self.special and self.start is not None and any(map(str.isalnum, self.word))


@dataclass(frozen=True)
class Case:
    """A text and the model's decision, with the relevance [W] of its words by method.

    The words of an encoder-decoder end with those that its decoder has seen. A method that gives these no relevance has
    fewer numbers than there are words.
    """

    id: str
    model: str
    decision: str | None  # the predicted label or token; None if the model predicts a score
    against: str | None  # the label or token that the decision is compared with
    probability: float | None  # of the decision
    words: Sequence[Word]
    relevance: Mapping[str, Sequence[float]]  # of several variants of a method, the one that comes first in the file


def cases(table: pa.Table) -> list[Case]:
    """The cases of a table of the schema WORDS: one for each text, model, task and decision."""
    rows_of: dict[tuple[Any, ...], dict[str, list[dict[str, Any]]]] = {}
    for row in table.to_pylist():
        by_method = rows_of.setdefault((row["id"], row["model"], row["task"], row["decision"]), {})
        rows = by_method.setdefault(row["method"], [])
        if not rows or all(row[name] == rows[0][name] for name in ("explanation", "embedding")):
            rows.append(row)
    return [_case(by_method) for by_method in rows_of.values()]


def _case(by_method: Mapping[str, Sequence[Mapping[str, Any]]]) -> Case:
    """The case of rows of the schema WORDS by method."""
    longest = max(by_method.values(), key=len)
    facts = {name: longest[0][name] for name in ("id", "model", "decision", "against", "probability")}
    words = [Word(**{name: row[name] for name in Word._fields}) for row in longest]
    return Case(
        **facts, words=words, relevance={name: [r["relevance"] for r in rows] for name, rows in by_method.items()}
    )


def _named(decision: str | None) -> str:
    """The decision in words; None stands for models that predict a score."""
    return "a score" if decision is None else decision


def sheets(cases: Sequence[Case], provenance: Provenance) -> str:
    """The page of the cases of a text as HTML, which prints each case on one sheet of paper."""
    return page_alone("case.html", f"Case {cases[0].id}", provenance, sheets=[_sheet(case) for case in cases])


def _sheet(case: Case) -> dict[str, Any]:
    """The variables of the template for a case."""
    decision = _named(case.decision)
    (first, values), *_ = case.relevance.items()
    caption = (
        f"Coloured by {first}: orange words raise the model's number for {decision}, blue ones lower it; "
        "the stronger the colour, the more. White words hardly count."
    )
    most = max(2, min(_STRONGEST, _OF_ALL // len(case.relevance)))
    return {
        "facts": [_sentence(case), f"Explained by {', '.join(case.relevance)}, of the model {case.model}."],
        "sides": _sides(case, values),
        "caption": caption,
        "decision": decision,
        "methods": [_strongest(name, case, of_method, most) for name, of_method in case.relevance.items()],
    }


def _sentence(case: Case) -> str:
    """The decision in plain words."""
    if case.decision is None:
        return "The model gave this text a score."
    sure = "" if case.probability is None else f", with a probability of {_percent(case.probability)}"
    against = (
        "" if case.against is None else f" The runner-up, or the alternative that was asked about: {case.against}."
    )
    return f"The model decided: {case.decision}{sure}.{against}"


def _percent(share: float) -> str:
    """A probability in percent, never rounded to certainty.

    >>> _percent(0.98765), _percent(0.99996)
    ('98.8 %', 'more than 99.9 %')
    """
    if share > 0.999:
        return "more than 99.9 %"
    return "less than 0.1 %" if share < 0.001 else f"{share:.1%}".replace("%", " %")


def _strongest(method: str, case: Case, values: Any, most: int) -> Mapping[str, str]:
    """The up to `most` words of largest positive, and of largest negative, relevance with their numbers, as text."""
    counted = [at for at in range(len(values)) if case.words[at].is_counted]
    numbers = dict(zip(counted, in_digits([float(values[at]) for at in counted]), strict=True))
    order = sorted(counted, key=lambda at: -values[at])
    raising = [at for at in order if values[at] > 0][:most]
    lowering = [at for at in reversed(order) if values[at] < 0][:most]
    strongest = [", ".join(f"{case.words[at].word} {numbers[at]}" for at in some) for some in (raising, lowering)]
    return {"method": method, "words_for": strongest[0], "words_against": strongest[1]}


def _sides(case: Case, values: Sequence[float]) -> list[Markup]:
    """Each side of the case as coloured words: its text, the second text of a pair, and what a decoder has seen."""
    padded = [*values, *(math.nan for _ in range(len(case.words) - len(values)))]
    specials = [word.special for word in case.words]
    row = {"scale": scale(padded, specials), "low": least(padded, specials)}  # NaN does not count
    kept = _kept(case, padded)
    sides = []
    for side in (TEXT, SECOND, DECODER):
        positions = [at for at in kept if case.words[at].side == side and not case.words[at].special]
        if positions:
            sides.append(_side(case, positions, padded, row))
    return sides


def _kept(case: Case, values: Sequence[float]) -> list[int]:
    """The indices of the words to show: all, or of a long text those around the most relevant words."""
    count = len(case.words)
    lengths = [len(word.word) + 1 for word in case.words]
    if sum(lengths) <= _WHOLE:
        return list(range(count))
    kept: set[int] = set()
    order = sorted(range(count), key=lambda at: -abs(values[at]) if not math.isnan(values[at]) else 0.0)
    for at in order:
        around = set(range(max(0, at - _AROUND), min(count, at + _AROUND + 1)))
        if sum(lengths[other] for other in kept | around) > _WHOLE:
            break
        kept |= around
    return sorted(kept)


def _side(case: Case, positions: Sequence[int], values: Sequence[float], row: Mapping[str, float]) -> Markup:
    """The words at `positions`, coloured on the scale in `row`, with the spaces between them; … for words left out."""
    text = Markup("")
    for before, at in zip([None, *positions], positions, strict=False):
        word = case.words[at]
        gap = "" if before is None else _gap(case, before, at)
        value = 0.0 if math.isnan(values[at]) else values[at]
        text += gap + strip([word.word], [value], [False], row)
    return text


def _gap(case: Case, before: int, at: int) -> str:
    """The text between the word `before` and the next shown word `at`: a space if the case has one, "" or " … "."""
    if at > before + 1:
        return " … "
    end, start = case.words[before].end, case.words[at].start
    return " " if end is None or start is None else " " * (start > end)
