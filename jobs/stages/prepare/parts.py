"""Parts: so many rows of a task, the unit in which the benchmark is annotated, tokenised and committed.

A part's shards are named by the key of what made them, so those that are there are not made again. Rejects are written
before the shard they belong to: where the shard is, the part is complete.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from evaluation.benchmark import sources
from evaluation.benchmark.pictures import Preprocessing, look
from evaluation.benchmark.samples import Beginning, Row, Words, is_reject, reject
from evaluation.benchmark.sources.own import Wanted
from evaluation.benchmark.views import tokenise
from evaluation.schema import GENERIC, REJECT, VIEW
from jobs.config import ModelConfig
from jobs.plan.hub import ModelUnavailable
from jobs.plan.models import decoder_tokenizer_of, load_tokenizer, tokenizers_key
from jobs.store import Artifact, Store, StoreError
from jobs.tasks import tasks
from lrp_core.kinds import Kind

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from evaluation.benchmark.annotate import Annotator, Finds

#: A part on its way to a worker. `rows` are generic rows and rejects as the source yields them, in JSON.
PART = pa.schema([("task", pa.string()), ("part", pa.int32()), ("rows", pa.large_string())])


@dataclass(frozen=True)
class Evidence:
    """Who finds the evidence of a task, and what it is."""

    kind: Finds
    spacy: str
    coref: str | None
    name: str  # what stands in `meta.annotator`


@dataclass(frozen=True)
class ViewWork:
    """Views to make of a task: for which tokenizer, or settings of images, under which key."""

    artifact: Artifact
    kind: Kind
    max_length: int
    truncate: bool
    answers: bool
    words: Words
    beginning: Beginning | None
    first_piece: bool
    preprocessing: Preprocessing | None  # of models of images, which have no tokenizer

    @property
    def tokenizer(self) -> str:
        """The key of the tokenizer."""
        return self.artifact.tokenizer


@dataclass(frozen=True)
class TaskWork:
    """What is missing of a task. `evidence` is None where the source brings it."""

    survey: sources.Survey
    artifact: Artifact  # the generic samples
    part_rows: int
    evidence: Evidence | None
    views: tuple[ViewWork, ...]
    has_generic: bool  # all generic shards are there: the source is not read again
    wanted: Wanted | None = None  # of every row of users' own with labels or scores
    marked: bool | None = None  # whether samples must have evidence, or must have none; None: as the source has it

    @property
    def task(self) -> str:
        return self.artifact.task

    @property
    def parts(self) -> int:
        return -(-(self.survey.drawn + self.survey.rejected) // self.part_rows)


def read_parts(works: pa.Table, work: dict[str, TaskWork]) -> Iterator[pa.Table]:
    """Ray Data task: the parts of the tasks named in the column `task`, one table each, as the source is read."""
    for task in works["task"].to_pylist():
        yield from parts_of(work[task])


def parts_of(work: TaskWork) -> Iterator[pa.Table]:
    tasks()  # a package's sources are entered in the table where they are read
    rows = iter(()) if work.has_generic else sources.read(work.survey, work.wanted)
    for part in range(work.parts):
        batch = list(islice(rows, work.part_rows))
        rows_text = json.dumps(batch, default=_as_text)
        yield pa.table({"task": [work.task], "part": [part], "rows": [rows_text]}, schema=PART)


def _as_text(data: bytes) -> str:
    """The bytes of an image, in JSON."""
    return b64encode(data).decode()


def _rows(text: str) -> list[Row]:
    """The rows of a part."""
    rows: list[Row] = json.loads(text)
    return [row if row.get("image") is None else {**row, "image": b64decode(row["image"])} for row in rows]


def _paths(artifact: Artifact, part: int) -> tuple[str, str]:
    """Where a part's rows lie, and its rejects."""
    rows, rejects = (f"{folder}/{_shard(artifact, part)}" for folder in artifact.folders)
    return rows, rejects


def shards_of(artifact: Artifact, parts: int) -> list[str]:
    """The file names of so many parts."""
    return [_shard(artifact, part) for part in range(parts)]


def _shard(artifact: Artifact, part: int) -> str:
    return artifact.shard(f"{part:05d}")


@dataclass
class Tally:
    """The reports of a task's parts, added up. Names are "generic" and the keys of tokenizers."""

    rows: Counter[str] = field(default_factory=Counter)
    rejects: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    cut: Counter[str] = field(default_factory=Counter)  # of the rows, those that lost tokens to fit a model
    error: str | None = None  # the first of a part that could not be committed

    def add(self, report: dict[str, Any]) -> None:
        self.error = self.error or report.get("error")
        for name, counts in report["counts"].items():
            self.rows[name] += counts["rows"]
            self.rejects[name].update(counts["rejects"])
            self.cut[name] += counts["cut"]

    def out(self, name: str) -> int:
        """Rows that came out, rejected ones included."""
        return self.rows[name] + self.rejects[name].total()


class PartWorker:
    """Annotates, tokenises and commits parts. A Ray Data actor, or an object of the driver for a small job.

    Pipelines and tokenizers are loaded when the first part asks for them, then kept.
    """

    def __init__(self, store: Store, work: dict[str, TaskWork], models: dict[str, ModelConfig]) -> None:
        """`models`, by the key of their tokenizer, say where it comes from."""
        self._store, self._work, self._models = store, work, models
        self._annotators: dict[Evidence, Annotator] = {}
        self._tokenizers: dict[str, tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase | None]] = {}

    def __call__(self, parts: pa.Table) -> pa.Table:
        """A report for each part, as JSON: what was committed, or the `error` of a store or hub that failed."""
        reports = []
        for part in parts.to_pylist():
            try:
                reports.append(self.commit(part))
            except (OSError, ModelUnavailable, StoreError) as error:
                reports.append({"task": part["task"], "counts": {}, "error": " ".join(str(error).split())})
        return pa.table({"report": [json.dumps(report) for report in reports]})

    def commit(self, part: dict[str, Any]) -> dict[str, Any]:
        """Writes what is missing of the part. Its report counts rows and rejects, of samples and for each tokenizer."""
        work, name = self._work[part["task"]], part["part"]
        path, refused = _paths(work.artifact, name)
        if not self._store.exists(path):
            rows, rejects = self._annotated(work, _rows(part["rows"]))
            self._write(path, rows, GENERIC, refused, rejects)
        counts = {"generic": self._count(path, GENERIC, refused)}
        counts |= {view.tokenizer: self._commit_view(work, view, name, path) for view in work.views}
        return {"task": work.task, "counts": counts}

    def _annotated(self, work: TaskWork, rows: list[Row]) -> tuple[list[Row], list[Row]]:
        """(generic rows with evidence, rejects)."""
        accepted, rejects = [row for row in rows if not is_reject(row)], [row for row in rows if is_reject(row)]
        if work.evidence is not None:
            annotated = self._annotator(work.evidence).annotate(accepted, work.evidence.kind)
            accepted = [row for row in annotated if not is_reject(row)]
            rejects += [row for row in annotated if is_reject(row)]
        if work.marked is not None:
            why = "no evidence" if work.marked else "evidence: say `evidence: true` of its task"
            wrong = [row for row in accepted if bool(row["evidence"]) != work.marked]
            rejects += [reject("source", why, sample_id=row["sample_id"]) for row in wrong]
            accepted = [row for row in accepted if bool(row["evidence"]) == work.marked]
        return accepted, rejects

    def _annotator(self, evidence: Evidence) -> Annotator:
        from evaluation.benchmark.annotate import Annotator

        if evidence not in self._annotators:
            self._annotators[evidence] = Annotator(evidence.spacy, evidence.coref)
        return self._annotators[evidence]

    def _tokenizer(self, key: str) -> tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase | None]:
        """The tokenizer of this key, and that of answers where there is another."""
        if key not in self._tokenizers:
            tokenizer, writer = load_tokenizer(self._models[key]), decoder_tokenizer_of(self._models[key])
            if tokenizers_key(tokenizer, writer) != key:
                here = f"{tokenizer.name_or_path} is {tokenizers_key(tokenizer, writer)} on this node"
                raise RuntimeError(f"{here}, {key} on the driver")
            self._tokenizers[key] = tokenizer, writer
        return self._tokenizers[key]

    def _commit_view(self, work: TaskWork, view: ViewWork, part: int, generic: str) -> dict[str, Any]:
        path, refused = _paths(view.artifact, part)
        if not self._store.exists(path):
            rows = self._store.read(generic, GENERIC).to_pylist()
            views, rejects = self._read(view, rows)
            self._write(path, views, VIEW, refused, rejects)
        return self._count(path, VIEW, refused)

    def _read(self, view: ViewWork, rows: list[Row]) -> tuple[list[Row], list[Row]]:
        """(view rows, reject rows)."""
        if view.preprocessing is not None:
            return look(rows, view.preprocessing)
        tokenizer, writer = self._tokenizer(view.tokenizer)
        return tokenise(
            rows,
            tokenizer,
            kind=view.kind,
            max_length=view.max_length,
            truncate=view.truncate,
            answers=view.answers,
            words=view.words,
            beginning=view.beginning,
            first_piece=view.first_piece,
            decoder_tokenizer=writer,
        )

    def _write(self, path: str, rows: list[Row], schema: pa.Schema, refused: str, rejects: list[Row]) -> None:
        if rejects:
            self._store.write_shard(refused, pa.Table.from_pylist(rejects, schema=REJECT), REJECT)
        self._store.write_shard(path, pa.Table.from_pylist(rows, schema=schema), schema)

    def _count(self, path: str, schema: pa.Schema, refused: str) -> dict[str, Any]:
        """What was committed, read back."""
        rows = self._store.read(path, schema, ["cut"] if "cut" in schema.names else ["sample_id"])
        cut = len(rows) - rows["cut"].null_count if "cut" in schema.names else 0
        reasons: list[str] = []
        if self._store.exists(refused):
            reasons = self._store.read(refused, REJECT, ["reason"])["reason"].to_pylist()
        return {"rows": len(rows), "cut": cut, "rejects": dict(Counter(reasons))}
