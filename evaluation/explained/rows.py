"""Explained texts as tidy tables: a row for each word, and for each token, of a text under a method."""

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
    #: [T] in the order of the text's tokens; without those that a decoder has seen, where the method speaks of none.
    relevance: np.ndarray
    summed: bool  # the method promises that relevance adds up to the explained number


@dataclass(frozen=True)
class ExplainedText:
    """A text as the model read it, with its decision and its relevance by each method.

    Tokens [T] are those of the text, of the second text of a pair, and those that a decoder has seen.
    """

    sides: Mapping[str, str]  # each side as its user has written it
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
    """The rows of texts, in their order: method by method, word by word."""
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
                shared | {"summed": entry.summed},
                {**groups.of_words, "relevance": sums if entry.summed else sums / groups.sizes},
            )
            by_token.add(shared, {**groups.of_tokens, "relevance": entry.relevance})
    return Tables(by_word.table(), by_token.table())


def _facts(name: Name, text: ExplainedText, entry: MethodRelevance, model: str, task: str | None) -> dict[str, Any]:
    """The columns that are alike in all rows of a text and method."""
    facts: dict[str, Any] = {"id": name.id, "row": name.row, "model": model, "task": task, "method": entry.method}
    facts |= {"explanation": entry.explanation, "embedding": entry.embedding, "explained": entry.explained}
    return facts | {"decision": text.decision, "against": text.against, "probability": text.probability}


@dataclass(frozen=True)
class _Groups:
    """The words of a text, with the fields of their rows and token rows that do not depend on the method."""

    starts: np.ndarray  # [W] the first token of each word
    sizes: np.ndarray  # [W]
    of_words: dict[str, Any]
    of_tokens: dict[str, Any]

    @classmethod
    def of(cls, text: ExplainedText, count: int) -> _Groups:
        """Of the first `count` tokens."""
        locations, special = text.locations[:count], list(map(bool, text.special[:count]))
        groups = [group for run in _sides(locations) for group in _words_of(text, run)]
        sizes = np.array([len(group) for group in groups], np.int64)
        sides = [locations[group[0]].side for group in groups]
        extents = [_extent([locations[at] for at in group]) for group in groups]
        of_words = {
            "side": sides,
            "at": _counted(sides),
            "word": [_word(text, group, *extent) for group, extent in zip(groups, extents, strict=True)],
            "special": [special[group[0]] for group in groups],
            "start": [start for start, _ in extents],
            "end": [end for _, end in extents],
            "tokens": sizes,
        }
        of_tokens = {
            "side": [location.side for location in locations],
            "at": _counted([location.side for location in locations]),
            "token": text.tokens[:count],
            "special": special,
            "start": [location.start for location in locations],
            "end": [location.end for location in locations],
            "word_at": np.repeat(np.array(of_words["at"], np.int64), sizes),
        }
        return cls(np.array([group[0] for group in groups], np.int64), sizes, of_words, of_tokens)


def _word(text: ExplainedText, group: Sequence[int], start: int | None, end: int | None) -> str:
    """A word as its user has written it, or as its tokens spell it."""
    if start is not None:
        return text.sides[text.locations[group[0]].side][start:end]
    return "".join(text.tokens[at] for at in group).strip()


def _sides(locations: Sequence[TokenLocation]) -> list[range]:
    """Runs of tokens of one side."""
    edges = [at for at in range(len(locations)) if not at or locations[at].side != locations[at - 1].side]
    return [range(start, end) for start, end in zip(edges, [*edges[1:], len(locations)], strict=True)]


def _words_of(text: ExplainedText, run: range) -> list[list[int]]:
    """Indices of the tokens of each word in a run."""
    tokens, special = text.tokens[run.start : run.stop], text.special[run.start : run.stop]
    return [[run.start + at for at in group] for group in words(tokens, special)]


def _counted(sides: Sequence[str]) -> list[int]:
    """The number of each entry among those of its side."""
    met: dict[str, int] = {}
    numbers = []
    for side in sides:
        numbers.append(met.get(side, 0))
        met[side] = numbers[-1] + 1
    return numbers


def _extent(locations: Sequence[TokenLocation]) -> tuple[int | None, int | None]:
    """The first and the last character of a word's tokens."""
    starts = [location.start for location in locations if location.start is not None]
    ends = [location.end for location in locations if location.end is not None]
    return (min(starts), max(ends)) if starts and ends else (None, None)


class _Columns:
    """Rows of a schema, as they come: columns that are alike in a block of rows are kept once for it."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._counts: list[int] = []
        self._shared: dict[str, list[Any]] = {}
        self._own: dict[str, list[Any]] = {}

    def add(self, shared: dict[str, Any], own: dict[str, Any]) -> None:
        """A block of rows: values that all have, and columns."""
        self._counts.append(len(own["relevance"]))
        for name, value in shared.items():
            self._shared.setdefault(name, []).append(value)
        for name, values in own.items():
            self._own.setdefault(name, []).append(values)

    def table(self) -> pa.Table:
        rows = pa.array(np.repeat(np.arange(len(self._counts)), self._counts))
        columns = [self._column(field, rows) for field in self._schema]
        return pa.Table.from_arrays(columns, schema=self._schema)

    def _column(self, field: pa.Field, rows: pa.Array) -> pa.Array:
        if field.name in self._shared:
            return pa.array(self._shared[field.name], field.type).take(rows)
        arrays: list[pa.Array] = [pa.array(values, field.type) for values in self._own.get(field.name, ())]
        return pa.concat_arrays(arrays) if arrays else pa.array([], field.type)
