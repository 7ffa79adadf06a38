"""Reads the samples of a task from its source: a first pass surveys the source, a second one yields the samples."""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from closelook.evaluation.benchmark.samples import Row, hash_of, is_reject, meta_of, with_meta
from closelook.evaluation.benchmark.sources.base import AnySource, Generated, Source, draw, repeated
from closelook.evaluation.benchmark.sources.files import Record, checksum, fetch
from closelook.evaluation.benchmark.sources.own import REPEATED, Wanted, distinct_rows, renamed
from closelook.evaluation.tasks import SOURCES
from closelook.lrp_core.records.types import UserError

if TYPE_CHECKING:  # takes a second to import, and only the hub needs it
    import datasets

GENERATED_ROWS = 1000  # where no limit is given


@dataclass(frozen=True)
class Origin:
    """The origin of a task's samples: `path` (file, folder, URL), else `hub`, else where it is published."""

    task: str
    source: str
    path: str | None = None  # or a pattern of paths
    hub: str | None = None
    revision: str | None = None
    sha256: str | None = None
    limit: int | None = None  # how many of the accepted rows to draw, by lowest sample id; for the demo, to generate
    seed: int = 0  # of the demo, and of balanced draws
    balance: bool = False  # draw rows of the rarer side several times, so that both sides have as many
    columns: Mapping[str, str] = field(default_factory=dict)  # of users' files: known name to name in the file


@dataclass(frozen=True)
class Survey:
    """The findings of the first pass over a source."""

    origin: Origin  # with the revision or checksum that was found
    read: int  # rows of the source
    drawn: int  # accepted and within the limit
    rejected: int
    last_id: str  # the highest sample id drawn
    digest: str  # hash of the samples drawn, and of all rejects with their reasons, whatever their order in the source
    parts: Mapping[str, int] = field(default_factory=dict)  # of the samples drawn, how many belong to each part
    repeated: int = 0  # further rows of users' files with the content of a sample
    unlabelled: int = 0  # samples drawn from users' files without label or score

    @property
    def left(self) -> int:
        """Accepted rows beyond the limit."""
        return self.read - self.drawn - self.rejected - self.repeated


def survey(origin: Origin, part: str | None = None, fields: Wanted | None = None) -> Survey:
    """Read the whole source once, and keep nothing but counts, and hashes of its samples and rejects.

    `part` is the field of `meta` that names the part of a task a sample belongs to; rows that `fields` does not accept
    are rejects.

    Raises UserError if the source cannot be read, its checksum differs from the pinned one, or no row is a sample.
    """
    origin = pinned(origin)
    hashes: dict[str, str] = {}  # sample id to the hash of what the id does not cover
    parts: dict[str, str] = {}  # sample id to the part it belongs to
    unlabelled: set[str] = set()
    rejects, repeated = list[str](), 0  # hashes of rejects
    first: Row | None = None
    for row in _rows(origin, fields):
        if is_reject(row):
            rejects.append(hash_of([row["sample_id"], row["reason"], row["detail"]])[:16])
            first = first or row
            continue
        name = row["sample_id"]
        if REPEATED in row:
            repeated += 1
            hashes[name] = hash_of([hashes[name], row[REPEATED]])[:16]
            continue
        hashes[name] = hash_of(_beside_id(row))[:16]
        if part is not None and (member := meta_of(row).get(part)) is not None:
            parts[name] = member
        if fields is not None and fields.output != "token" and row["label"] is None and row["score"] is None:
            unlabelled.add(name)
    if not hashes:
        raise _without_samples(origin, first)
    drawn = sorted(hashes)[: origin.limit]
    hashed = [*(sample_id + hashes[sample_id] for sample_id in drawn), *sorted(rejects)]
    digest = hashlib.sha256("".join(hashed).encode()).hexdigest()
    counts = Counter(parts[sample_id] for sample_id in drawn if sample_id in parts)
    return Survey(
        origin,
        read=len(hashes) + repeated + len(rejects),
        drawn=len(drawn),
        rejected=len(rejects),
        last_id=drawn[-1],
        digest=digest,
        parts=dict(sorted(counts.items())),
        repeated=repeated,
        unlabelled=len(unlabelled.intersection(drawn)),
    )


def _without_samples(origin: Origin, first: Row | None) -> UserError:
    """The error of a source without a sample; `first` is its first reject, if it has one."""
    rejected = "it has no rows"
    if first:
        why = ": ".join(filter(None, (first["reason"], first["detail"])))
        rejected = f"the first at {first['where']}: {why}"
    return UserError(f"no usable row in the {origin.source} source of task {origin.task}; {rejected}")


def _beside_id(row: Row) -> list[object]:
    """The values of a generic row that do not enter its sample id; optional ones only where they are set."""
    rest = [row["evidence"], row["scope"], row["meta"]]
    return rest + [row[name] for name in ("regions", "cluster") if row[name] is not None]


def read(survey: Survey, fields: Wanted | None = None) -> Iterator[Row]:
    """The samples that `survey` drew, and all rejects, in the order of the source.

    Evidence is empty where an annotator has still to find it. What further rows with a sample's content have in other
    columns is in the sample's `meta.repeated`.
    """
    repeated: dict[str, list[Row]] = defaultdict(list)
    if survey.repeated:  # a pass of its own, since further rows may come long after the sample's first
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
    """Every row of the source; a row that `fields` does not accept is a reject."""
    source = SOURCES[origin.source]
    if isinstance(source, Generated):
        yield from source.generate(origin.task, origin.limit or GENERATED_ROWS, origin.seed)
        return

    def rows() -> Iterator[Row]:
        """The rows, before any is drawn several times."""
        return distinct_rows(source, records(source, origin), fields or Wanted())

    if origin.balance and source.side is not None:
        yield from repeated(rows(), draw(rows(), source.side, origin.seed))
    else:
        yield from rows()


def records(source: Source, origin: Origin) -> Iterator[Record]:
    """The records of a source at a fixed revision, users' own with the names of known columns."""
    for where, record in _records(source, origin):
        yield where, renamed(record, origin.columns)


def _records(source: Source, origin: Origin) -> Iterator[Record]:
    """The records of the source as its files, or its splits on the hub, have them: columns are not yet renamed."""
    if origin.path is not None:
        for file in fetch(origin.path, source.suffixes, source.nested):
            yield from source.records(file)
        return
    for config in source.hub_configs:
        for split in source.hub_splits:
            yield from source.hub_records(_split(origin, config, split))


def _split(origin: Origin, config: str | None, split: str) -> datasets.Dataset:
    """A split of the data set on the hub. Raises UserError if it cannot be loaded."""
    import datasets

    with _hub_errors(origin):
        return datasets.load_dataset(origin.hub, config, split=split, revision=origin.revision)


@contextmanager
def _hub_errors(origin: Origin) -> Iterator[None]:
    """Turns what `datasets` raises inside the block into a UserError that names the data set."""
    import datasets

    try:
        yield
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        reason = " ".join(str(error).split())
        advice = f"set `path` of {origin.task!r} to a local copy"
        raise UserError(f"cannot load {origin.hub} from the hub: {reason}; {advice}") from error


def pinned(origin: Origin, source: AnySource | None = None) -> Origin:
    """`origin` with its path or hub id filled in, and with the checksum or revision that the data have now.

    `source` replaces the record that SOURCES has of this name. Raises UserError if the data cannot be read, their
    checksum is not the pinned one, or the source cannot be balanced.
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
