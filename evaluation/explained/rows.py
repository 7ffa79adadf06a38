"""Explained texts as tidy tables: a row for each word, and one for each token, of a text under a method.

Shapes: T tokens of a text, W its words.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from evaluation.benchmark.pieces import words
from evaluation.explained.spans import TokenLocation
from evaluation.schema import TOKENS, WORDS


@dataclass(frozen=True)
class MethodRelevance:
    """The relevance of a text's tokens by a method, for an explained number."""

    method: str
    explanation: str
    embedding: str
    explained: float
    #: [T] in the order of the text's tokens. A method that gives no relevance to what a decoder has seen has fewer.
    relevance: np.ndarray
    conserves: bool  # True: the method conserves the explained number, so that a word has the sum of its tokens


@dataclass(frozen=True)
class ExplainedText:
    """A text as the model read it, with the model's decision and the relevance by each method.

    Tokens [T] are those of the text, then of the second text of a pair, then those that a decoder has seen.
    """

    sides: Mapping[str, str]  # the text of each side as the user wrote it
    tokens: Sequence[str]
    special: Sequence[bool]
    locations: Sequence[TokenLocation]
    decision: str | None
    against: str | None
    probability: float | None
    by_method: Sequence[MethodRelevance]


class Name(NamedTuple):
    """The name of a text for its user: an id, and the number of its row in a file."""

    id: str
    row: int | None = None


class Tables(NamedTuple):
    """Rows of the schemas WORDS and TOKENS."""

    words: pa.Table
    tokens: pa.Table


def tables(texts: Iterable[tuple[Name, ExplainedText]], model: str, task: str | None = None) -> Tables:
    """The words and tokens of texts as tables, text by text, method by method.

    A word's relevance is the sum over its tokens if the method conserves the explained number, else their mean.
    """
    by_word, by_token = _Columns(WORDS), _Columns(TOKENS)
    for name, text in texts:
        known: dict[int, _Groups] = {}
        for entry in text.by_method:
            count = len(entry.relevance)
            if count not in known:
                known[count] = _Groups.of(text, count)
            groups = known[count]
            shared = _facts(name, text, entry, model, task)
            sums = np.add.reduceat(entry.relevance.astype(np.float64), groups.starts)
            by_word.add(
                shared | {"summed": entry.conserves},
                {**groups.of_words, "relevance": sums if entry.conserves else sums / groups.sizes},
            )
            by_token.add(shared, {**groups.of_tokens, "relevance": entry.relevance})
    return Tables(by_word.table(), by_token.table())


def _facts(name: Name, text: ExplainedText, entry: MethodRelevance, model: str, task: str | None) -> dict[str, Any]:
    """The columns that have the same value in all rows of a text and method."""
    facts: dict[str, Any] = {"id": name.id, "row": name.row, "model": model, "task": task, "method": entry.method}
    facts |= {"explanation": entry.explanation, "embedding": entry.embedding, "explained": entry.explained}
    return facts | {"decision": text.decision, "against": text.against, "probability": text.probability}


@dataclass(frozen=True)
class _Groups:
    """The words of a text, and the columns of their rows and of token rows that do not depend on the method."""

    starts: np.ndarray  # [W] the first token of each word
    sizes: np.ndarray  # [W]
    of_words: dict[str, Any]
    of_tokens: dict[str, Any]

    @classmethod
    def of(cls, text: ExplainedText, count: int) -> _Groups:
        """The words of the first `count` tokens of a text, those to which a method gives relevance."""
        locations, special = text.locations[:count], list(map(bool, text.special[:count]))
        groups = [group for run in _sides(locations) for group in _words_of(text, run)]
        sizes = np.array([len(group) for group in groups], np.int64)
        sides = [locations[group[0]].side for group in groups]
        extents = [_extent([locations[at] for at in group]) for group in groups]
        words = [_word(text, group, *extent) for group, extent in zip(groups, extents, strict=True)]
        of_words = {
            "side": sides,
            "at": _counted(sides),
            "word": words,
            "special": [special[group[0]] for group in groups],
            "start": [start for start, _ in extents],
            "end": [end for _, end in extents],
            "tokens": sizes,
        }
        token_sides = [location.side for location in locations]
        of_tokens = {
            "side": token_sides,
            "at": _counted(token_sides),
            "token": text.tokens[:count],
            "special": special,
            "start": [location.start for location in locations],
            "end": [location.end for location in locations],
            "word_at": np.repeat(np.array(of_words["at"], np.int64), sizes),
        }
        return cls(np.array([group[0] for group in groups], np.int64), sizes, of_words, of_tokens)


def _word(text: ExplainedText, group: Sequence[int], start: int | None, end: int | None) -> str:
    """The word of the tokens `group`: the user's characters [start, end), or the tokens' own text if these are None."""
    if start is not None:
        return text.sides[text.locations[group[0]].side][start:end]
    return "".join(text.tokens[at] for at in group).strip()


def _sides(locations: Sequence[TokenLocation]) -> list[range]:
    """The ranges of consecutive tokens of the same side."""
    edges = [at for at in range(len(locations)) if not at or locations[at].side != locations[at - 1].side]
    return [range(start, end) for start, end in zip(edges, [*edges[1:], len(locations)], strict=True)]


def _words_of(text: ExplainedText, run: range) -> list[list[int]]:
    """The indices of the tokens of each word in a range of tokens."""
    tokens, special = text.tokens[run.start : run.stop], text.special[run.start : run.stop]
    return [[run.start + at for at in group] for group in words(tokens, special)]


def _counted(sides: Sequence[str]) -> list[int]:
    """For each entry of `sides` how many entries of the same side come before it.

    >>> _counted(["text", "text", "second"])
    [0, 1, 0]
    """
    met: dict[str, int] = {}
    numbers = []
    for side in sides:
        numbers.append(met.get(side, 0))
        met[side] = numbers[-1] + 1
    return numbers


def _extent(locations: Sequence[TokenLocation]) -> tuple[int | None, int | None]:
    """The characters [start, end) from a word's first token to its last; (None, None) if they have no characters."""
    starts = [location.start for location in locations if location.start is not None]
    ends = [location.end for location in locations if location.end is not None]
    return (min(starts), max(ends)) if starts and ends else (None, None)


class _Columns:
    """Collects a table of a schema in blocks of rows; a value that all rows of a block share is kept once."""

    def __init__(self, schema: pa.Schema) -> None:
        """An empty table of `schema`."""
        self._schema = schema
        self._counts: list[int] = []
        self._shared: dict[str, list[Any]] = {}
        self._own: dict[str, list[Any]] = {}

    def add(self, shared: dict[str, Any], columns: dict[str, Any]) -> None:
        """Adds a block of rows: `shared` values, equal in all of them, and `columns` with a value for each row."""
        self._counts.append(len(columns["relevance"]))
        for name, value in shared.items():
            self._shared.setdefault(name, []).append(value)
        for name, values in columns.items():
            self._own.setdefault(name, []).append(values)

    def table(self) -> pa.Table:
        """All rows that were added."""
        rows = pa.array(np.repeat(np.arange(len(self._counts)), self._counts))
        columns = [self._column(field, rows) for field in self._schema]
        return pa.Table.from_arrays(columns, schema=self._schema)

    def _column(self, field: pa.Field, rows: pa.Array) -> pa.Array:
        """A column of the table; `rows` has the number of its block for each row."""
        if field.name in self._shared:
            return pa.array(self._shared[field.name], field.type).take(rows)
        arrays: list[pa.Array] = [pa.array(values, field.type) for values in self._own.get(field.name, ())]
        return pa.concat_arrays(arrays) if arrays else pa.array([], field.type)
