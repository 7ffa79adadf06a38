"""The record of a source: its layouts, how a record becomes samples, whether it brings evidence, whose it is.

Balanced draws: rows of one side are drawn with replacement, as many as the other side has.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from closelook.evaluation.benchmark.samples import Malformed, Row, is_reject, reject, rejecting, with_meta
from closelook.evaluation.benchmark.sources.files import Record

HubRows = Iterable[dict[str, Any]]  # of a data set on the hub
Side = Literal["drawn", "counted"]  # rows to draw from, and rows that say how many are drawn


def numbered(rows: HubRows) -> Iterator[Record]:
    """The rows of a data set on the hub as records; `where` is the number of a row, from 0."""
    for number, row in enumerate(rows):
        yield f"row {number}", row


@dataclass(frozen=True)
class Source:
    """The record of a data set that is read from files or from the Hugging Face hub.

    >>> from closelook.evaluation.benchmark.sources.text import TEXT
    >>> TEXT.suffixes, TEXT.is_users
    (('.txt',), True)
    """

    name: str
    title: str
    suffixes: tuple[str, ...]
    records: Callable[[Path], Iterator[Record]]  # of a published file
    rows: Callable[[Record], Iterator[Row]]  # generic rows and rejects of one record
    url: str = ""
    licence: str = "the user's own"
    nested: bool = False  # its files lie in folders of the folder that it is given
    brings_evidence: bool = False  # else an annotator has to find what the task names
    file_url: str | None = None  # where the published file is
    hub: str | None = None
    hub_configs: tuple[str | None, ...] = (None,)  # of the data set, read one after another; None: the default
    hub_splits: tuple[str, ...] = ()
    hub_records: Callable[[HubRows], Iterator[Record]] = numbered
    side: Callable[[Row], Side | None] | None = None  # what `balance` makes even; None: nothing
    #: The texts of a record, as a corpus has them; of records with columns, those of the column named. None: no corpus.
    texts: Callable[[Any, str], Iterable[str]] | None = None

    @property
    def is_users(self) -> bool:
        """True if the source has no published place, so that its files are the user's own."""
        return self.hub is None and self.file_url is None


@dataclass(frozen=True)
class Generated:
    """The record of a source whose samples are generated: `generate(task, count, seed)` yields generic rows."""

    name: str
    title: str
    generate: Callable[[str, int, int], Iterator[Row]]
    brings_evidence: bool = True
    corpus: str | None = None  # the task whose texts are its corpus; None: no corpus


AnySource = Source | Generated


def one_sample(parse: Callable[[Any], Row]) -> Callable[[Record], Iterator[Row]]:
    """A function for `Source.rows`, for records that hold one sample each.

    `parse` returns the sample of a record's content; where it raises Malformed, the function yields a reject.
    """

    def rows(record: Record) -> Iterator[Row]:
        """The sample of a record, or a reject."""
        where, content = record
        out: list[Row] = []
        with rejecting(out, "source", where=where):
            if isinstance(content, Malformed):
                raise content
            out.append(parse(content))
        yield from out

    return rows


def column_of(record: Any, column: str) -> Iterator[str]:
    """A function for `Source.texts`, for records with columns: yields the text of `column`. Raises Malformed."""
    yield field(record, column)


def field(record: Any, name: str, kind: type = str) -> Any:
    """`record[name]`. Raises Malformed if the record is no object, lacks the field or has another type there."""
    if not isinstance(record, dict):
        raise Malformed("not an object", type(record).__name__)
    if name not in record:
        raise Malformed(f"no column {name!r}", f"the columns are {', '.join(map(str, record))}")
    if not isinstance(record[name], kind) or (kind is int and isinstance(record[name], bool)):
        raise Malformed(f"column {name!r} is not {kind.__name__}", repr(record[name])[:80])
    return record[name]


def draw(rows: Iterable[Row], side: Callable[[Row], Side | None], seed: int) -> dict[str, int]:
    """The number of draws of each row of the side "drawn", by sample id; it depends on the ids and `seed` only.

    Rows are drawn with replacement, as many as there are rows of the side "counted".
    """
    ids: dict[Side, list[str]] = {"drawn": [], "counted": []}
    for row in rows:
        if not is_reject(row) and (row_side := side(row)) is not None:
            ids[row_side].append(row["sample_id"])
    pool, rng = sorted(ids["drawn"]), random.Random(f"balance {seed}")
    times = Counter(rng.choices(pool, k=len(ids["counted"])) if pool else [])
    return {sample_id: times[sample_id] for sample_id in pool}


def repeated(rows: Iterable[Row], times: dict[str, int]) -> Iterator[Row]:
    """`rows`, each as often as `times` says by its sample id; rows that `times` does not name once.

    A row that was never drawn is a reject. Copies get an id of their own, and their number in `meta.copy`.
    """
    for row in rows:
        sample_id = row["sample_id"]
        count = 1 if is_reject(row) else times.get(sample_id, 1)
        if not count:
            yield reject("source", "not drawn to balance singular and plural", sample_id=sample_id)
            continue
        yield row
        for copy in range(2, count + 1):
            yield with_meta(row, copy=copy) | {"sample_id": f"{sample_id}-{copy}"}
