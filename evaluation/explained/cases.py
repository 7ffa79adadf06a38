"""Cases read back from rows by word: a text, its decision, and the relevance of its words by every method."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from evaluation.explained.rows import Name
from evaluation.explained.spans import TEXT

_OF_CASE = ("id", "row", "model", "task", "decision", "against", "probability")  # alike in all rows of a case


class Variant(NamedTuple):
    """A method with what it explains and what of the embedding it counts."""

    method: str
    explanation: str
    embedding: str


class Word(NamedTuple):
    """A word of a text, and where it stands: [start, end) in characters of its side; None: it has none there."""

    word: str
    side: str
    start: int | None
    end: int | None
    special: bool  # the tokenizer's template added it

    @property
    def is_counted(self) -> bool:
        """True of a word with letters or digits that the text itself has."""
        return not self.special and self.start is not None and any(map(str.isalnum, self.word))


@dataclass(frozen=True)
class Case:
    """A text and its decision, with the relevance [W] of its words by variant.

    Of a method that says nothing of what a decoder has seen, relevance is shorter than the words.
    """

    name: Name
    model: str
    task: str | None
    decision: str | None  # None of a score
    against: str | None
    probability: float | None
    words: Sequence[Word]
    relevance: dict[Variant, np.ndarray]

    @property
    def content(self) -> int:
        """Cases with equal content are the same text with the same decision of the same model."""
        return hash((self.model, self.task, self.decision, *(word.word for word in self.words)))

    @property
    def by_method(self) -> dict[str, np.ndarray]:
        """The relevance of each method, by the variant that comes first in the file."""
        first: dict[str, np.ndarray] = {}
        for variant, values in self.relevance.items():
            first.setdefault(variant.method, values)
        return first


def cases(table: pa.Table) -> Iterator[Case]:
    """The cases of rows of the schema WORDS, in their order.

    The rows of a case and method follow each other, from the first word of its text; so do the methods of a case.
    """
    sides, numbers = table["side"].to_pylist(), table["at"].to_numpy()
    starts = [at for at in np.flatnonzero(numbers == 0).tolist() if sides[at] == TEXT]
    if not starts:
        return
    columns = {name: table[name].take(pa.array(starts)).to_pylist() for name in (*_OF_CASE, *Variant._fields)}
    relevance = table["relevance"].to_numpy()
    words = _words(table)
    ends = [*starts[1:], table.num_rows]
    case: Case | None = None
    for at, (start, end) in enumerate(zip(starts, ends, strict=True)):
        facts: dict[str, Any] = {name: columns[name][at] for name in _OF_CASE}
        variant = Variant(*(columns[name][at] for name in Variant._fields))
        name = Name(facts.pop("id"), facts.pop("row"))
        of_case = words[start:end]
        if case is None or variant in case.relevance or not _is_same(case, name, facts):
            if case is not None:
                yield case
            case = Case(name, **facts, words=of_case, relevance={})
        elif len(of_case) > len(case.words):
            case = Case(name, **facts, words=of_case, relevance=case.relevance)
        case.relevance[variant] = relevance[start:end]
    if case is not None:
        yield case


def _words(table: pa.Table) -> list[Word]:
    return list(map(Word, *(table[name].to_pylist() for name in Word._fields)))


def _is_same(case: Case, name: Name, facts: dict[str, Any]) -> bool:
    return case.name == name and all(getattr(case, field) == value for field, value in facts.items())
