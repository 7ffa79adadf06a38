"""Parts: runs of a task's rows, each annotated, tokenised and committed at once.

A part's shards are named by their key, so those that exist are not made again. Rejects are written before the shard to
which they belong: a part whose shard exists is complete.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

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
#: A part on its way to a worker. `rows` are generic rows and rejects as the source yields them, in JSON.
PART = pa.schema([("task", pa.string()), ("part", pa.int32()), ("rows", pa.large_string())])


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
        yield from parts_of(work[task])


def parts_of(work: TaskWork) -> Iterator[pa.Table]:
    """Yield the parts of a task, a table of schema PART each."""
    tasks()  # enters sources of installed packages in the table
    rows = iter(()) if work.has_generic else reading.read(work.survey, work.required)
    for part in range(work.parts):
        batch = list(islice(rows, work.part_rows))
        text = json.dumps(batch, default=lambda image: b64encode(image).decode())
        yield pa.table({"task": [work.task], "part": [part], "rows": [text]}, schema=PART)


def _rows(text: str) -> list[Row]:
    """The rows of a part from their JSON; images are base64 there."""
    rows: list[Row] = json.loads(text)
    return [row if row.get("image") is None else {**row, "image": b64decode(row["image"])} for row in rows]


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
    """The reports of a task's parts, added up.

    Counts are by name: "generic" (samples), or the key of a reader (views).
    """

    rows: Counter[str] = field(default_factory=Counter)
    rejects: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    cut: Counter[str] = field(default_factory=Counter)  # rows that lost tokens to fit a model
    error: str | None = None  # the first error of a part that could not be committed
    files: dict[str, Written] = field(default_factory=dict)  # by path

    def add(self, report: dict[str, Any]) -> None:
        """Add the report of one part."""
        self.error = self.error or report.get("error")
        self.files |= {path: Written(**file) for path, file in report.get("files", {}).items()}
        for name, counts in report["counts"].items():
            self.rows[name] += counts["rows"]
            self.rejects[name].update(counts["rejects"])
            self.cut[name] += counts["cut"]

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
        """A report for each part, as JSON: counts of the committed rows, or the `error` of a store or hub."""
        reports = []
        for part in parts.to_pylist():
            try:
                report = self.commit(part)
            except (OSError, ModelUnavailable, StoreError) as error:
                report = {"task": part["task"], "counts": {}, "error": one_line(error)}
            reports.append(json.dumps(report))
        return pa.table({"report": reports})

    def commit(self, part: dict[str, Any]) -> dict[str, Any]:
        """Write the shards of a part that are missing: its samples, then its views for every tokenizer.

        Returns the report that `Tally.add` reads: the task, the files by path, and the counts of rows and rejects,
        those of samples as "generic", those of views under the key of their tokenizer.
        """
        work, number = self._work[part["task"]], part["part"]
        samples, rejects = _paths(work.artifact, number)
        files: dict[str, Written] = {}
        if not work.has_generic:
            files |= self._committed(work.artifact, number, GENERIC, lambda: self._annotated(work, _rows(part["rows"])))
        counts = {"generic": self._count(samples, GENERIC, rejects)}
        for view in work.views:
            path, rejects = _paths(view.artifact, number)
            schema = ANSWER_VIEW if self._config.task(work.task).explains_answers else VIEW

            def read_view(view: ViewWork = view) -> Parted:
                return self._read(work.task, view.reader, self._store.read(samples, GENERIC).to_pylist())

            files |= self._committed(view.artifact, number, schema, read_view)
            counts[view.reader.key] = self._count(path, VIEW, rejects)
        return {"task": work.task, "counts": counts, "files": {path: asdict(file) for path, file in files.items()}}

    def _committed(
        self,
        artifact: Artifact,
        part: int,
        schema: pa.Schema,
        make: Callable[[], Parted],
    ) -> dict[str, Written]:
        """The files of a part by path. They are written unless a shard's footer has the key, part and source.

        The source's checksum or revision counts, since the key does not depend on the order of its rows: in another
        order, parts of the same number have other rows.
        """
        source = self._work[artifact.task].survey.origin
        (path, refused), name = _paths(artifact, part), f"{_name(part)} of {source.sha256 or source.revision}"
        origin = Origin(artifact.key, name)
        shard = self._store.read_committed(path, schema)
        if shard is not None and shard.origin == origin:
            (rejects,) = self._store.read_all([refused])
            return {path: shard.written} if rejects is None else {path: shard.written, refused: written(rejects)}
        rows, rejected = make()
        files = {}
        if rejected:
            files[refused] = self._store.write_shard(refused, pa.Table.from_pylist(rejected, schema=REJECT), REJECT)
        table = pa.Table.from_pylist(rows, schema=schema)
        return files | {path: self._store.write_shard(path, table, schema, origin=origin)}

    def _annotated(self, work: TaskWork, rows: list[Row]) -> Parted:
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
        """The tokenizer of a reader, and that of answers if it is another; else None.

        Raises RuntimeError if this machine has another tokenizer than the driver.
        """
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

    def _count(self, path: str, schema: pa.Schema, refused: str) -> dict[str, Any]:
        """Counts of the committed rows, read back: all, those cut to fit a model, and rejects by reason."""
        column = "cut" if "cut" in schema.names else "sample_id"
        rows = self._store.read(path, schema, [column])[column]
        cut = len(rows) - rows.null_count if column == "cut" else 0
        reasons: list[str] = []
        if self._store.exists(refused):
            reasons = self._store.read(refused, REJECT, ["reason"])["reason"].to_pylist()
        return {"rows": len(rows), "cut": cut, "rejects": dict(Counter(reasons))}


def _parted(rows: Iterable[Row]) -> Parted:
    """(accepted rows, rejects)."""
    parted: Parted = ([], [])
    for row in rows:
        parted[is_reject(row)].append(row)
    return parted
