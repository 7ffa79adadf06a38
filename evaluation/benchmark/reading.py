"""Samples of a task, read from its source: surveyed once, then drawn."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from evaluation.benchmark.samples import Malformed, Row, is_reject, meta_of, rejecting
from evaluation.benchmark.sources.balance import draw, repeated
from evaluation.benchmark.sources.base import AnySource, Generated, Source
from evaluation.benchmark.sources.files import Record, checksum, fetch
from evaluation.benchmark.sources.own import Wanted
from evaluation.tasks import SOURCES
from lrp_core.types import UserError

if TYPE_CHECKING:  # takes a second to import, and only the hub needs it
    import datasets

GENERATED_ROWS = 1000  # where no limit is given


@dataclass(frozen=True)
class Origin:
    """The origin of a task: `path` (file, folder or URL), else `hub`, else the place where the source is published."""

    task: str
    source: str
    path: str | None = None  # or a pattern of paths
    hub: str | None = None
    revision: str | None = None
    sha256: str | None = None
    limit: int | None = None  # how many of the accepted rows to draw, by lowest sample id; for the demo, to generate
    seed: int = 0  # of the demo, and of balanced draws
    balance: bool = False  # draw the rows of one side so often that there are as many as of the other


@dataclass(frozen=True)
class Survey:
    """A first pass over a source."""

    origin: Origin  # with the revision or checksum that was found
    read: int  # rows of the source
    drawn: int  # accepted and within the limit
    rejected: int
    last_id: str  # the highest sample id drawn
    digest: str  # of the samples drawn, in whatever order they were found
    parts: Mapping[str, int] = field(default_factory=dict)  # of the samples drawn, how many belong to each part

    @property
    def left(self) -> int:
        """Accepted rows beyond the limit."""
        return self.read - self.drawn - self.rejected


def survey(origin: Origin, part: str | None = None, wanted: Wanted | None = None) -> Survey:
    """Reads the whole source once, keeping nothing but hashes. `part` names what tells parts apart in `meta`; rows that
    are not as `wanted` are rejects.

    Raises UserError when the source cannot be had, its checksum differs from the pinned one, or every row is broken.
    """
    origin = pinned(origin)
    hashes: dict[str, str] = {}  # sample id to the hash of what the id does not cover
    parts: dict[str, str] = {}  # sample id to the part it belongs to
    rejects = 0
    first: Row | None = None
    for row in _rows(origin, wanted):
        if is_reject(row):
            rejects += 1
            first = first or row
        else:
            rest = [row["evidence"], row["scope"], row["meta"]]
            if row["regions"] is not None:
                rest.append(row["regions"])
            if row["cluster"] is not None:
                rest.append(row["cluster"])
            hashes[row["sample_id"]] = hashlib.sha256(json.dumps(rest).encode()).hexdigest()[:16]
            if part is not None and (member := meta_of(row).get(part)) is not None:
                parts[row["sample_id"]] = member
    if not hashes:
        rejected = "there are none"
        if first:
            why = ": ".join(filter(None, (first["reason"], first["detail"])))
            rejected = f"the first at {first['where']}: {why}"
        raise UserError(f"no usable row in the {origin.source} source of task {origin.task}; {rejected}")
    drawn = sorted(hashes)[: origin.limit]
    digest = hashlib.sha256("".join(sample_id + hashes[sample_id] for sample_id in drawn).encode()).hexdigest()
    counts = Counter(parts[sample_id] for sample_id in drawn if sample_id in parts)
    return Survey(origin, len(hashes) + rejects, len(drawn), rejects, drawn[-1], digest, dict(sorted(counts.items())))


def read(survey: Survey, wanted: Wanted | None = None) -> Iterator[Row]:
    """The generic rows drawn and the rejects, in the source's order. Evidence is empty where an annotator finds it."""
    return (row for row in _rows(survey.origin, wanted) if is_reject(row) or row["sample_id"] <= survey.last_id)


def _rows(origin: Origin, wanted: Wanted | None) -> Iterator[Row]:
    """Every row of the source; a row that is not as `wanted`, or whose content came before, is a reject."""
    source = SOURCES[origin.source]
    if isinstance(source, Generated):
        yield from source.generate(origin.task, origin.limit or GENERATED_ROWS, origin.seed)
    elif origin.balance and source.side is not None:
        yield from repeated(_distinct(source, origin), draw(_distinct(source, origin), source.side, origin.seed))
    else:
        yield from _distinct(source, origin, wanted)


def _distinct(source: Source, origin: Origin, wanted: Wanted | None = None) -> Iterator[Row]:
    seen: set[str] = set()
    for record in records(source, origin):
        for row in source.rows(record):
            if is_reject(row):
                yield row
                continue
            out: list[Row] = []
            with rejecting(out, "source", sample_id=row["sample_id"], where=record[0]):
                if wanted is not None:
                    wanted.check(row)
                if row["sample_id"] in seen:
                    raise Malformed("same content as an earlier row")
                out.append(row)
                seen.add(row["sample_id"])
            yield from out


def records(source: Source, origin: Origin) -> Iterator[Record]:
    """The records of an origin that is pinned."""
    if origin.path is not None:
        for file in fetch(origin.path, source.suffixes, source.nested):
            yield from source.records(file)
        return
    for config in source.hub_configs:
        for split in source.hub_splits:
            yield from source.hub_records(_split(origin, config, split))


def _split(origin: Origin, config: str | None, split: str) -> datasets.Dataset:
    import datasets

    with _hub_errors(origin):
        return datasets.load_dataset(origin.hub, config, split=split, revision=origin.revision)


@contextmanager
def _hub_errors(origin: Origin) -> Iterator[None]:
    import datasets

    try:
        yield
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"cannot load {origin.hub} from the hub: {reason}; set `path` to a local copy") from error


def pinned(origin: Origin, source: AnySource | None = None) -> Origin:
    """`origin` with a path or hub id, and with the checksum or revision it has now.

    `source` stands in for the record of its name. Raises UserError when it cannot be had, its checksum is not the
    pinned one, or there is nothing to balance.
    """
    source = source or SOURCES[origin.source]
    if origin.balance and (isinstance(source, Generated) or source.side is None):
        raise UserError(f"tasks.{origin.task}.balance: the {source.name} source has nothing to balance; leave it out")
    if isinstance(source, Generated):
        return origin
    if origin.path is None and origin.hub is None:
        origin = replace(origin, hub=source.hub, path=None if source.hub else source.file_url)
    if origin.path is not None:
        files = fetch(origin.path, source.suffixes, source.nested)
        return replace(origin, sha256=checksum(files, origin.sha256))
    if not source.hub_splits:
        raise UserError(f"the {source.name} source is published as a file: set `path`, not `hub`")
    import datasets

    with _hub_errors(origin):
        commit = datasets.load_dataset_builder(origin.hub, source.hub_configs[0], revision=origin.revision).hash
    return replace(origin, revision=commit if re.fullmatch("[0-9a-f]{40}", commit or "") else origin.revision)
