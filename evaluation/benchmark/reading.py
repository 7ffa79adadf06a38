"""Samples of a task, read from its source: surveyed once, then drawn."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from evaluation.benchmark.samples import Malformed, Row, is_reject, meta_of, rejecting, with_meta
from evaluation.benchmark.sources.balance import draw, repeated
from evaluation.benchmark.sources.base import AnySource, Generated, Source
from evaluation.benchmark.sources.files import Record, checksum, fetch
from evaluation.benchmark.sources.own import REPEATED, SAMPLES, Wanted, own_rows, renamed
from evaluation.tasks import SOURCES
from lrp_core.records.types import UserError

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
    columns: Mapping[str, str] = field(default_factory=dict)  # of users' own: the file's name of each known column


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
    repeated: int = 0  # further rows of users' own with the content of a sample
    unlabelled: int = 0  # of the samples drawn of users' own, those without label or score

    @property
    def left(self) -> int:
        """Accepted rows beyond the limit."""
        return self.read - self.drawn - self.rejected - self.repeated


def survey(origin: Origin, part: str | None = None, fields: Wanted | None = None) -> Survey:
    """Read the whole source once and keep only hashes.

    `part` is the field of `meta` that names parts; rows that do not match `fields` are rejects.

    Raises UserError when the source cannot be had, its checksum differs from the pinned one, or every row is broken.
    """
    origin = pinned(origin)
    hashes: dict[str, str] = {}  # sample id to the hash of what the id does not cover
    parts: dict[str, str] = {}  # sample id to the part it belongs to
    unlabelled: set[str] = set()
    rejects = repeated = 0
    first: Row | None = None
    for row in _rows(origin, fields):
        if is_reject(row):
            rejects += 1
            first = first or row
            continue
        name = row["sample_id"]
        if REPEATED in row:
            repeated += 1
            hashes[name] = _hash([hashes[name], row[REPEATED]])
            continue
        hashes[name] = _hash(_beside_id(row))
        if part is not None and (member := meta_of(row).get(part)) is not None:
            parts[name] = member
        if fields is not None and fields.output != "token" and row["label"] is None and row["score"] is None:
            unlabelled.add(name)
    if not hashes:
        rejected = "there are none"
        if first:
            why = ": ".join(filter(None, (first["reason"], first["detail"])))
            rejected = f"the first at {first['where']}: {why}"
        raise UserError(f"no usable row in the {origin.source} source of task {origin.task}; {rejected}")
    drawn = sorted(hashes)[: origin.limit]
    digest = hashlib.sha256("".join(sample_id + hashes[sample_id] for sample_id in drawn).encode()).hexdigest()
    counts = Counter(parts[sample_id] for sample_id in drawn if sample_id in parts)
    return Survey(
        origin,
        read=len(hashes) + repeated + rejects,
        drawn=len(drawn),
        rejected=rejects,
        last_id=drawn[-1],
        digest=digest,
        parts=dict(sorted(counts.items())),
        repeated=repeated,
        unlabelled=len(unlabelled.intersection(drawn)),
    )


def _beside_id(row: Row) -> list[object]:
    """The parts of a generic row that its sample id does not cover."""
    rest = [row["evidence"], row["scope"], row["meta"]]
    return rest + [row[name] for name in ("regions", "cluster") if row[name] is not None]


def _hash(content: list[object]) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def read(survey: Survey, fields: Wanted | None = None) -> Iterator[Row]:
    """The generic rows drawn and the rejects, in the source's order. Evidence is empty where an annotator finds it.

    The other columns of further rows of a sample are in its `meta.repeated`.
    """
    repeated: dict[str, list[Row]] = defaultdict(list)
    if survey.repeated:  # they may come long after the first
        for row in _rows(survey.origin, fields):
            if REPEATED in row:
                repeated[row["sample_id"]].append(row[REPEATED])
    for row in _rows(survey.origin, fields):
        if is_reject(row):
            yield row
        elif REPEATED not in row and row["sample_id"] <= survey.last_id:
            further = repeated.get(row["sample_id"])
            yield row if further is None else with_meta(row, repeated=further)


def _rows(origin: Origin, fields: Wanted | None) -> Iterator[Row]:
    """Every row of the source; a row that is not as `fields` is a reject.

    So is one whose content came before. Of users' own it is a row with the key REPEATED.
    """
    source = SOURCES[origin.source]
    if isinstance(source, Generated):
        yield from source.generate(origin.task, origin.limit or GENERATED_ROWS, origin.seed)
    elif origin.balance and source.side is not None:
        yield from repeated(_distinct(source, origin), draw(_distinct(source, origin), source.side, origin.seed))
    elif source is SAMPLES:
        yield from own_rows(records(source, origin), fields or Wanted())
    else:
        yield from _distinct(source, origin)


def _distinct(source: Source, origin: Origin) -> Iterator[Row]:
    seen: set[str] = set()
    for record in records(source, origin):
        for row in source.rows(record):
            if is_reject(row):
                yield row
                continue
            out: list[Row] = []
            with rejecting(out, "source", sample_id=row["sample_id"], where=record[0]):
                if row["sample_id"] in seen:
                    raise Malformed("same content as an earlier row")
                out.append(row)
                seen.add(row["sample_id"])
            yield from out


def records(source: Source, origin: Origin) -> Iterator[Record]:
    """The records of a source at a fixed revision, users' own with the names of known columns."""
    for where, record in _records(source, origin):
        yield where, renamed(record, origin.columns)


def _records(source: Source, origin: Origin) -> Iterator[Record]:
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
