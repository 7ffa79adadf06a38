"""Parts: runs of a task's rows, each annotated, tokenised and committed at once.

A part's shards are named by their key, so those that exist are not made again. Rejects are written before the shard to
which they belong: a part whose shard exists is complete.
"""

from __future__ import annotations

import pickle
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import pyarrow as pa

from closelook.evaluation.benchmark import reading
from closelook.evaluation.benchmark.pictures import Preprocessing, look
from closelook.evaluation.benchmark.samples import Row, is_reject
from closelook.evaluation.benchmark.sources.own import Wanted
from closelook.evaluation.benchmark.views import tokenise
from closelook.evaluation.schema import ANSWER_VIEW, GENERIC, REJECT, VIEW
from closelook.jobs.config import ModelConfig, RunConfig
from closelook.jobs.plan.checkpoints import ModelUnavailable
from closelook.jobs.plan.models import decoder_tokenizer_of, load_tokenizer, tokenizers_key
from closelook.jobs.store import Artifact, Origin, Store, StoreError, Written
from closelook.jobs.store.files import written
from closelook.jobs.store.retry import one_line
from closelook.jobs.tasks import tasks
from closelook.lrp_core.records.kinds import Kind

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from closelook.evaluation.benchmark.annotate import Annotator
    from closelook.evaluation.tasks.record import Finds

Parted = tuple[list[Row], list[Row]]  # rows and rejects


@dataclass(frozen=True)
class SourcePart:
    """A part on its way to a worker: generic rows and rejects, as the source yields them."""

    task: str
    number: int
    rows: Sequence[Row]

    def to_table(self) -> pa.Table:
        """The part as it travels through Ray."""
        return pa.table({"part": pa.array([pickle.dumps(self)], pa.large_binary())})


@dataclass(frozen=True)
class Committed:
    """The rows and rejects of a part's shard in the store, and the files that the worker has written or checked."""

    table: pa.Table
    rejects: Sequence[Row]
    files: Mapping[str, Written] = field(default_factory=dict)  # by path

    @property
    def cut(self) -> int:
        """The number of rows that lost tokens to fit a model."""
        if "cut" not in self.table.column_names:
            return 0
        return self.table.num_rows - self.table["cut"].null_count


@dataclass(frozen=True)
class Evidence:
    """An annotator, and the kind of evidence that it finds for a task."""

    kind: Finds
    spacy: str
    coref: str | None
    name: str  # as `meta.annotator` has it


@dataclass(frozen=True)
class Reader:
    """A tokenizer, or image settings, with the tasks and limits of the models that use it."""

    key: str
    model: ModelConfig  # one of the models, from which the tokenizer is loaded
    kind: Kind
    max_length: int
    tasks: frozenset[str]
    preprocessing: Preprocessing | None = None  # of models of images, which have no tokenizer
    labels: Mapping[str, tuple[tuple[str, ...], ...]] = field(default_factory=dict)  # by task: labels of each model

    def joined(self, other: Reader) -> Reader:
        """The reader of the models of both readers, which share a tokenizer: the shorter limit, and all tasks."""
        tasks = self.tasks | other.tasks
        both = {task: (*self.labels.get(task, ()), *other.labels.get(task, ())) for task in tasks}
        labels = {task: tuple(dict.fromkeys(names)) for task, names in both.items()}
        return replace(self, max_length=min(self.max_length, other.max_length), tasks=tasks, labels=labels)


@dataclass(frozen=True)
class ViewWork:
    """Views of a task that are to be made by one reader."""

    artifact: Artifact
    reader: Reader


@dataclass(frozen=True)
class TaskWork:
    """The artifacts of a task that are to be made. `evidence` is None if the data have it."""

    survey: reading.Survey
    artifact: Artifact  # the generic samples
    parts: int
    part_rows: int
    evidence: Evidence | None
    views: tuple[ViewWork, ...]
    has_generic: bool  # all generic shards exist: the source is not read again
    required: Wanted | None = None  # demands on rows of users' own samples

    @property
    def task(self) -> str:
        return self.artifact.task

    @property
    def missing(self) -> list[Artifact]:
        """The artifacts that are to be made, samples first."""
        return [*([] if self.has_generic else [self.artifact]), *(view.artifact for view in self.views)]


def read_parts(works: pa.Table, work: dict[str, TaskWork]) -> Iterator[pa.Table]:
    """Yield the parts of the tasks in the column `task`, as tables, while the source is read. A task of Ray Data."""
    for task in works["task"].to_pylist():
        for part in parts_of(work[task]):
            yield part.to_table()


def parts_of(work: TaskWork) -> Iterator[SourcePart]:
    """Yield the parts of a task."""
    tasks()  # enters sources of installed packages in the table
    rows = iter(()) if work.has_generic else reading.read(work.survey, work.required)
    for number in range(work.parts):
        yield SourcePart(work.task, number, list(islice(rows, work.part_rows)))


def _paths(artifact: Artifact, part: int) -> tuple[str, str]:
    """The paths of a part's rows and of its rejects."""
    rows, rejects = (f"{folder}/{artifact.shard(_name(part))}" for folder in artifact.folders)
    return rows, rejects


def _name(part: int) -> str:
    """The name of a part in the names of its shards."""
    return f"{part:05d}"


def shards_of(artifact: Artifact, parts: int) -> list[str]:
    """The file names of the first `parts` parts."""
    return [artifact.shard(_name(part)) for part in range(parts)]


@dataclass
class Tally:
    """The counts and files of a task's part, or of all its parts.

    Counts are by name: "generic" (samples), or the key of a reader (views).
    """

    task: str
    rows: Counter[str] = field(default_factory=Counter)
    rejects: dict[str, Counter[str]] = field(default_factory=partial(defaultdict, Counter))
    cut: Counter[str] = field(default_factory=Counter)  # rows that lost tokens to fit a model
    error: str | None = None  # the first error of a part that could not be committed
    files: dict[str, Written] = field(default_factory=dict)  # by path

    @classmethod
    def of(cls, task: str, committed: Mapping[str, Committed]) -> Tally:
        """The counts of a part that was committed, by name."""
        tally = cls(task)
        for name, part in committed.items():
            tally.rows[name] = part.table.num_rows
            tally.cut[name] = part.cut
            tally.rejects[name] = Counter(reject["reason"] for reject in part.rejects)
            tally.files |= part.files
        return tally

    def add(self, part: Tally) -> None:
        """Add the counts of a part."""
        self.error = self.error or part.error
        self.files |= part.files
        self.rows.update(part.rows)
        self.cut.update(part.cut)
        for name, counts in part.rejects.items():
            self.rejects[name].update(counts)

    def out(self, name: str) -> int:
        """The number of rows that came out, rejected ones included."""
        return self.rows[name] + self.rejects[name].total()


class PartWorker:
    """Annotates, tokenises and commits parts: an actor of Ray Data, or an object of the driver for small jobs.

    Annotators and tokenizers are loaded when the first part needs them, then kept.
    """

    def __init__(self, config: RunConfig, store: Store, work: dict[str, TaskWork]) -> None:
        self._config, self._store, self._work = config, store, work
        self._annotators: dict[Evidence, Annotator] = {}
        self._tokenizers: dict[str, tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase | None]] = {}

    def __call__(self, parts: pa.Table) -> pa.Table:
        """The reports of the parts in a table of Ray Data, as a table."""
        reports = map(self.report_on, map(pickle.loads, parts["part"].to_pylist()))
        return pa.table({"report": [pickle.dumps(report) for report in reports]})

    def report_on(self, part: SourcePart) -> Tally:
        """Commit a part. The error of a store or hub becomes a field of the tally."""
        try:
            return Tally.of(part.task, self.commit(part))
        except (OSError, ModelUnavailable, StoreError) as error:
            return Tally(part.task, error=one_line(error))

    def commit(self, part: SourcePart) -> dict[str, Committed]:
        """Write the shards of a part that are missing: its samples, then its views for every tokenizer.

        Returns the samples as "generic", and the views under the keys of their tokenizers.
        """
        work = self._work[part.task]
        if work.has_generic:
            path, refused = _paths(work.artifact, part.number)
            samples = Committed(self._store.read(path, GENERIC), self._rejects_in(refused))
        else:
            samples = self._committed(work.artifact, part.number, GENERIC, lambda: self._annotated(work, part.rows))
        committed = {"generic": samples}
        schema = ANSWER_VIEW if self._config.task(part.task).explains_answers else VIEW
        for view in work.views:

            def read_view(view: ViewWork = view) -> Parted:
                return self._read(work.task, view.reader, samples.table.to_pylist())

            committed[view.reader.key] = self._committed(view.artifact, part.number, schema, read_view)
        return committed

    def _rejects_in(self, path: str) -> list[Row]:
        """The rejects in the file at `path`, which exists only if there are any."""
        return self._store.read(path, REJECT).to_pylist() if self._store.exists(path) else []

    def _committed(self, artifact: Artifact, number: int, schema: pa.Schema, make: Callable[[], Parted]) -> Committed:
        """The part of an artifact in the store; it is made unless a shard's footer has the key, part and source.

        The source's checksum or revision counts, since the key does not depend on the order of its rows: in another
        order, parts of the same number have other rows.
        """
        source = self._work[artifact.task].survey.origin
        path, refused = _paths(artifact, number)
        origin = Origin(artifact.key, f"{_name(number)} of {source.sha256 or source.revision}")
        shard = self._store.read_committed(path, schema)
        if shard is not None and shard.origin == origin:
            (content,) = self._store.read_all([refused])
            files = {path: shard.written} if content is None else {path: shard.written, refused: written(content)}
            return Committed(shard.table, self._rejects_in(refused), files)
        rows, rejects = make()
        files = {}
        if rejects:
            files[refused] = self._store.write_shard(refused, pa.Table.from_pylist(rejects, schema=REJECT), REJECT)
        table = pa.Table.from_pylist(rows, schema=schema)
        files[path] = self._store.write_shard(path, table, schema, origin=origin)
        return Committed(table, rejects, files)

    def _annotated(self, work: TaskWork, rows: Iterable[Row]) -> Parted:
        """(generic rows with evidence, rejects)."""
        accepted, rejects = _parted(rows)
        if work.evidence is not None:
            annotator = self._annotator(work.evidence)
            accepted, refused = _parted(annotator.annotate(accepted, work.evidence.kind))
            rejects += refused
        return accepted, rejects

    def _annotator(self, evidence: Evidence) -> Annotator:
        """The annotator, loaded once."""
        from closelook.evaluation.benchmark.annotate import Annotator

        if evidence not in self._annotators:
            self._annotators[evidence] = Annotator(evidence.spacy, evidence.coref)
        return self._annotators[evidence]

    def _tokenizer(self, reader: Reader) -> tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase | None]:
        """The tokenizer of a reader, and that of answers if it is another; else None."""
        if reader.key not in self._tokenizers:
            tokenizer, writer = load_tokenizer(reader.model), decoder_tokenizer_of(reader.model)
            key = tokenizers_key(tokenizer, writer)
            if key != reader.key:
                name = tokenizer.name_or_path
                raise RuntimeError(f"{name} is {key} on this machine, {reader.key} on the driver: use the same files")
            self._tokenizers[key] = tokenizer, writer
        return self._tokenizers[reader.key]

    def _read(self, name: str, reader: Reader, rows: list[Row]) -> Parted:
        """(view rows, rejects) of generic rows of the task `name`."""
        if reader.preprocessing is not None:
            return look(rows, reader.preprocessing)
        tokenizer, writer = self._tokenizer(reader)
        settings, task = self._config.tasks[name], self._config.task(name)
        return tokenise(
            rows,
            tokenizer,
            kind=reader.kind,
            max_length=reader.max_length,
            truncate=settings.truncate,
            answers=task.answer,
            words=task.words,
            beginning=task.beginning,
            first_piece=settings.first_piece,
            decoder_tokenizer=writer,
            units=settings.units,
        )


def _parted(rows: Iterable[Row]) -> Parted:
    """(accepted rows, rejects)."""
    parted: Parted = ([], [])
    for row in rows:
        parted[is_reject(row)].append(row)
    return parted
