"""Cases, read from tables of words: a text, the model's decision, and the relevance of its words by every method.

Shapes: W words of a case.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from closelook.evaluation.explained.rows import TEXT, Name

_OF_CASE = ("id", "row", "model", "task", "decision", "against", "probability")  # equal in all rows of a case


class Variant(NamedTuple):
    """A method with its explanation and its embeddings (see the glossary)."""

    method: str
    explanation: str
    embedding: str


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
    """A text and the model's decision, with the relevance [W] of its words by variant.

    The words of an encoder-decoder end with those that its decoder has seen. A method that gives these no relevance has
    fewer numbers than there are words.
    """

    name: Name
    model: str
    task: str | None
    decision: str | None  # the predicted label or token; None if the model predicts a score
    against: str | None  # the label or token that the decision is compared with
    probability: float | None  # of the decision
    words: Sequence[Word]
    relevance: dict[Variant, np.ndarray]

    @property
    def by_method(self) -> dict[str, np.ndarray]:
        """The relevance by method; of a method with several variants, the one that comes first in the file."""
        first: dict[str, np.ndarray] = {}
        for variant, values in self.relevance.items():
            first.setdefault(variant.method, values)
        return first


def cases(table: pa.Table) -> Iterator[Case]:
    """The cases of a table of the schema WORDS, in its order.

    The rows of a case are together, variant by variant, and those of a variant begin with the first word of the text.
    """
    sides, numbers = table["side"].to_pylist(), table["at"].to_numpy()
    starts = [at for at in np.flatnonzero(numbers == 0).tolist() if sides[at] == TEXT]
    if not starts:
        return
    columns = {name: table[name].take(pa.array(starts)).to_pylist() for name in (*_OF_CASE, *Variant._fields)}
    relevance = table["relevance"].to_numpy()
    words = list(map(Word, *(table[name].to_pylist() for name in Word._fields)))
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


def _is_same(case: Case, name: Name, facts: dict[str, Any]) -> bool:
    """True if a row with this name and these values of _OF_CASE belongs to the case."""
    return case.name == name and all(getattr(case, field) == value for field, value in facts.items())
