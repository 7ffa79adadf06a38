"""`closelook explain-file`: a run on the texts of a file, whose relevance is exported as tidy rows.

The folder of the run, OUT.run, stays beside the rows: the same command computes only what it lacks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from closelook.evaluation.benchmark.samples import Malformed
from closelook.evaluation.benchmark.sources.base import field
from closelook.evaluation.benchmark.sources.files import IN_FOLDERS, fetch, records
from closelook.evaluation.benchmark.sources.own import ID, ids_of, renamed
from closelook.evaluation.report.spreadsheet import csv_text
from closelook.evaluation.schema import REJECT
from closelook.jobs.commands.init import name_of, task_of_samples
from closelook.jobs.commands.options import ModelOptions
from closelook.jobs.commands.roots.explained import Output, export_relevance
from closelook.jobs.commands.roots.runs import summaries
from closelook.jobs.config import ModelConfig, RunConfig
from closelook.jobs.plan.models import resolve
from closelook.jobs.results import Run, load
from closelook.jobs.store import Store
from closelook.lrp_core.methods.record import Method
from closelook.lrp_core.records.types import UserError
from closelook.methods import METHODS
from closelook.terminal import complain, say

COLUMNS = ("text", "second", "target", "foil", ID)
_TASK = "texts"
_STAGES = ("prepare", "attribute")
_FILE = "texts.jsonl"  # in the root of the run
_SHOWN = 5  # rows without an explanation that are printed one by one

Unexplained = tuple[str, str, str]  # id, place in the file, reason


class _Text(NamedTuple):
    """A row of the user's file: its known columns that are not empty, and its place, file:line."""

    columns: dict[str, str]
    where: str


def explain_file(
    file: str,
    to: Path,
    of: ModelOptions,
    methods: Sequence[Method],
    columns: Mapping[str, str],
    workers: int,
    explanation: str | None,
    truncate: bool,
) -> bool:
    """Explain every text of `file`, write the rows to `to`, and print a summary. Returns True if nothing failed.

    `columns` gives the file's name for columns of COLUMNS. Raises UserError for a file, model or method that does not
    fit.
    """
    output, store = Output(to), Store(str(to.with_suffix(".run")))
    for column in columns:
        if column not in COLUMNS:
            raise UserError(f"--column {column}=...: it must name one of {', '.join(COLUMNS)} before the =")
    rows, unexplained = _texts(file, columns)
    model = _model_of(of, workers)
    resolved = resolve(ModelConfig.model_validate(model))
    if resolved.kind.images:
        raise UserError(f"{of.model} reads images: explain-file reads texts")
    for method in methods:
        method.require(resolved.family)
    if not Path(store.root).exists():
        output.check_free()
    store.create()
    lines = [json.dumps(row.columns, ensure_ascii=False) for row in rows]
    store.write_bytes(_FILE, "\n".join([*lines, ""]).encode())
    path = str(Path(store.root) / _FILE)
    task = task_of_samples(path, resolved.output, {}, has_evidence=False) | {"truncate": truncate}
    keys: dict[str, Any] = {"name": "explain-file", "device": of.device, "models": [model], "tasks": {_TASK: task}}
    keys["methods"] = [_entry(method) for method in methods]
    keys |= {"embeddings": ["full"], "explanations": _explanations(explanation, resolved.output, rows)}
    failures: list[str] = []
    for summary in summaries(RunConfig.load(keys, store.root, ()), store, _STAGES, 0.0, say):
        failures += summary.failures
    for failure in failures:
        complain(failure, "red")
    run = load(store.root)
    explained, _ = export_relevance(run, output)
    unexplained += _rejected(run, rows)
    _write_list(output.unexplained, unexplained)
    say(f"{explained:,} texts explained, {len(unexplained):,} without an explanation")
    for _, where, reason in unexplained[:_SHOWN]:
        complain(f"  {where}: {reason}")
    if len(unexplained) > _SHOWN:
        complain(f"  and {len(unexplained) - _SHOWN:,} more, in {output.unexplained}")
    say(f"written to {output.path} (by word) and {output.tokens} (by token); the run is in {store.root}")
    return not failures


def _texts(file: str, columns: Mapping[str, str]) -> tuple[list[_Text], list[Unexplained]]:
    """(rows with a text, rows without). A row without an id gets its number. Raises UserError if no row has a text."""
    rows: list[_Text] = []
    bad: list[Unexplained] = []
    for part in fetch(file, IN_FOLDERS):
        for where, record in records(part):
            row, number = renamed(record, columns), str(len(rows) + len(bad) + 1)
            try:
                known = _row(row)
            except Malformed as error:
                bad.append((number, where, str(error)))
                continue
            rows.append(_Text({ID: number, **known}, where))
    if not rows and not bad:
        raise UserError(f"{file} is empty: it needs at least one row with a text")
    if not rows:
        _, where, reason = bad[0]
        raise UserError(f"no row of {file} holds a text; the first at {where}: {reason}")
    return rows, bad


def _row(record: Any) -> dict[str, str]:
    """The known columns of a row that are not empty. Raises Malformed for a row without a text."""
    if isinstance(record, Malformed):
        raise record
    if isinstance(record, dict) and "text" not in record:
        advice = "name it with --column text=NAME, or add a first line with the names of columns"
        raise Malformed("no column 'text'", f"there are {', '.join(map(str, record))}: {advice}")
    if not field(record, "text").strip():
        raise Malformed("empty text")
    return {name: str(record[name]) for name in COLUMNS if record.get(name) not in (None, "")}


def _model_of(of: ModelOptions, workers: int) -> dict[str, Any]:
    """The config entry of the model."""
    name = str(of.model)
    entry = {"name": name_of(name), "id": name, "dtype": of.dtype, "family": of.family, "workers": [1, workers]}
    further = {"adapter": of.adapter, "decoder_tokenizer": of.decoder_tokenizer}
    return entry | {key: value for key, value in further.items() if value is not None}


def _explanations(explanation: str | None, output: str, rows: Sequence[_Text]) -> list[str]:
    """The numbers to explain: what was asked for, else contrasts wherever there are any, and targets elsewhere."""
    if explanation is not None:
        return [explanation]
    if output != "token":
        return ["target" if output == "score" else "contrastive"]
    has_foil = {"foil" in row.columns for row in rows if "target" in row.columns}
    return [name for name, is_needed in (("contrastive", True), ("target", False)) if is_needed in has_foil]


def _entry(method: Method) -> dict[str, Any]:
    """The config entry of a method, with the options that differ from its usual ones."""
    usual = METHODS[method.base].values
    options = {name: value for name, value in method.values.items() if usual.get(name) != value}
    return {"name": re.sub(r"[^A-Za-z0-9._-]+", "-", method.name).strip("-"), "method": method.base, **options}


def _rejected(run: Run, texts: Sequence[_Text]) -> Iterator[Unexplained]:
    """The rows that the run could not explain, with the reasons."""
    by_line = {f"{_FILE}:{line}": text for line, text in enumerate(texts, start=1)}
    places = {text.columns[ID]: text.where for text in texts}
    samples = run.samples("arrow", task=_TASK).select(["sample_id", "meta"]).to_pylist()
    names = {row["sample_id"]: ids_of(row["meta"]) for row in samples}
    tables = [table for name in ("benchmark", "views") for _, table in run.read_each(name, REJECT, folder=1)]
    for artifact, _ in run.current("relevance"):
        if artifact.rejects is not None and run.store.exists(artifact.rejects):
            tables.append(run.store.read([artifact.rejects], REJECT))
    for row in [row for table in tables for row in table.to_pylist()]:
        reason = ": ".join(filter(None, (row["reason"], row["detail"])))
        if row["where"] in by_line:
            text = by_line[row["where"]]
            yield text.columns[ID], text.where, reason
            continue
        for name in names.get(row["sample_id"], ()):
            yield str(name), places.get(str(name), ""), reason


def _write_list(path: Path, rows: Sequence[Unexplained]) -> None:
    """Write the rows without an explanation as CSV; with none, remove an old list."""
    if not rows:
        path.unlink(missing_ok=True)
        return
    path.write_text(csv_text([["id", "where", "reason"], *map(list, rows)]), encoding="utf-8", newline="")
