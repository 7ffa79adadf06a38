"""`closelook explain-file`: a run on the texts of a file, whose relevance is exported as tidy rows.

The folder of the run, OUT.run, stays beside the rows: the same command computes only what it lacks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from closelook.evaluation.benchmark.samples import Malformed
from closelook.evaluation.benchmark.sources.files import IN_FOLDERS, fetch, records
from closelook.evaluation.benchmark.sources.own import ID, renamed
from closelook.jobs.commands.init import name_of, task_of_samples
from closelook.jobs.commands.options import ModelOptions
from closelook.jobs.commands.roots.explained import Output, export_relevance
from closelook.jobs.commands.roots.runs import summaries
from closelook.jobs.config import ModelConfig, RunConfig
from closelook.jobs.plan.models import resolve
from closelook.jobs.results import load
from closelook.jobs.store import Store
from closelook.lrp_core.methods.record import Method
from closelook.lrp_core.records.types import UserError
from closelook.methods import METHODS
from closelook.terminal import complain, say

COLUMNS = ("text", "second", "target", "foil", ID)
_TASK = "texts"
_STAGES = ("prepare", "attribute")
_FILE = "texts.jsonl"  # in the root of the run


def explain_file(
    file: str,
    to: Path,
    of: ModelOptions,
    methods: Sequence[Method],
    columns: Mapping[str, str],
    encoding: str,
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
    rows = _texts(file, columns, encoding)
    model = _model_of(of, workers)
    resolved = resolve(ModelConfig.model_validate(model))
    if resolved.kind.images:
        raise UserError(f"{of.model} reads images: explain-file reads texts")
    for method in methods:
        method.require(resolved.family)
    if not Path(store.root).exists():
        output.check_free()
    store.create()
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    store.write_bytes(_FILE, "\n".join([*lines, ""]).encode())
    path = str(Path(store.root) / _FILE)
    task = task_of_samples(path, resolved.output, {}, has_evidence=False) | {"truncate": truncate}
    keys: dict[str, Any] = {"name": "explain-file", "device": of.device, "models": [model], "tasks": {_TASK: task}}
    keys["methods"] = [_entry(method) for method in methods]
    keys |= {"embeddings": ["full"], "explanations": _explanations(explanation, resolved.output, rows)}
    failures: list[str] = []
    for summary in summaries(RunConfig.load(keys, store.root, ()), store, _STAGES, 0.0):
        failures += summary.failures
        for line in summary.lines:
            say(line)
    for failure in failures:
        complain(failure, "red")
    explained, _ = export_relevance(load(store.root), output)
    say(f"{explained:,} texts explained")
    say(f"written to {output.path} (by word) and {output.tokens} (by token); the run is in {store.root}")
    return not failures


def _texts(file: str, columns: Mapping[str, str], encoding: str) -> list[dict[str, str]]:
    """The known columns of each row that are not empty, and its text; a row without an id gets its number."""
    rows: list[dict[str, str]] = []
    malformed: list[str] = []
    with TemporaryDirectory() as folder:
        for part in fetch(file, IN_FOLDERS):
            readable = _in_utf_8(part, encoding, Path(folder))
            for number, (where, record) in enumerate(records(readable), start=len(rows) + 1):
                if isinstance(record, Malformed):
                    malformed.append(f"{where}: {record}")
                row = renamed(record, columns)
                known = {} if not isinstance(row, Mapping) else {name: row.get(name) for name in COLUMNS}
                filled = {name: str(value) for name, value in known.items() if value not in (None, "")}
                rows.append({ID: str(number), "text": "", **filled})
    if not any(row.get("text", "").strip() for row in rows):
        advice = "name its column with --column text=NAME, or add a first line with the names of columns"
        raise UserError(f"no row of {file} holds a text: {malformed[0] if malformed else advice}")
    if malformed:
        complain(f"{len(malformed):,} rows cannot be read, and count as empty; the first: {malformed[0]}")
    return rows


def _in_utf_8(file: Path, encoding: str, folder: Path) -> Path:
    """The file, or a copy in `folder` where its `encoding` is another. Raises UserError if it cannot be decoded."""
    if encoding == "utf-8":
        return file
    try:
        text = file.read_bytes().decode(encoding)
    except LookupError:
        raise UserError(f"there is no encoding {encoding!r}: give one that Python knows, such as latin-1") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not {encoding}: {error}") from None
    copy = folder / file.name
    copy.write_bytes(text.encode())
    return copy


def _model_of(of: ModelOptions, workers: int) -> dict[str, Any]:
    """The config entry of the model."""
    name = str(of.model)
    entry = {"name": name_of(name), "id": name, "dtype": of.dtype, "family": of.family, "workers": [1, workers]}
    further = {"adapter": of.adapter, "decoder_tokenizer": of.decoder_tokenizer}
    return entry | {key: value for key, value in further.items() if value is not None}


def _explanations(explanation: str | None, output: str, rows: Sequence[Mapping[str, str]]) -> list[str]:
    """The numbers to explain: what was asked for, else contrasts wherever there are any, and targets elsewhere."""
    if explanation is not None:
        return [explanation]
    if output != "token":
        return ["target" if output == "score" else "contrastive"]
    has_foil = {"foil" in row for row in rows if "target" in row}
    return [name for name, is_needed in (("contrastive", True), ("target", False)) if is_needed in has_foil]


def _entry(method: Method) -> dict[str, Any]:
    """The config entry of a method, with the options that differ from its usual ones."""
    usual = METHODS[method.base].values
    options = {name: value for name, value in method.values.items() if usual.get(name) != value}
    return {"name": re.sub(r"[^A-Za-z0-9._-]+", "-", method.name).strip("-"), "method": method.base, **options}
