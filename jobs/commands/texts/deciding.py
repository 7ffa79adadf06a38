"""`closelook decisions`: writes pages about explained decisions, from rows by word, with their data as CSV."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from closelook.evaluation.explained.cases import Case, Disagreement, Importances, disagreements
from closelook.evaluation.explained.cases import cases as cases_of
from closelook.evaluation.explained.pages import PAIRS, overview, sheet
from closelook.evaluation.report.page import Provenance
from closelook.evaluation.report.spreadsheet import csv_text
from closelook.evaluation.schema import WORDS, check
from closelook.evaluation.schema.versioned import SchemaMismatch
from closelook.jobs.commands.terminal import as_csv, say
from closelook.jobs.versions import versions
from closelook.lrp_core.records.types import UserError, nearest


class _Key(NamedTuple):
    """The fields that identify a case: a decision about one row of texts."""

    id: str
    row: int | None
    model: str
    task: str | None
    decision: str | None


def write_decisions(file: Path, to: Path, cases: Sequence[str]) -> None:
    """Write pages about the rows in `file` to the folder `to`, with a sheet for each case whose id is in `cases`.

    Cases on which methods disagree most get sheets too. Raises UserError for a file without rows by word, a folder with
    other files, and an id that no case has.
    """
    every = list(cases_of(_read(file)))
    if to.is_dir() and any(to.iterdir()) and not (to / "importance.csv").exists():
        raise UserError(f"{to} is not empty, and holds no pages of this command: name another folder")
    ids = {case.name.id for case in every}
    for name in cases:
        if name not in ids:
            raise UserError(f"{file} has no case {name!r}{nearest(name, ids)}")
    importances = Importances()
    for case in every:
        importances.add(case)
    pairs = sorted(disagreements(every), key=lambda pair: (pair.correlation, pair.id))
    shown = pairs[:PAIRS]
    chosen = [_key_of_case(case) for case in every if case.name.id in cases]
    sheets = _files([*chosen, *map(_key_of_pair, shown)])
    provenance = Provenance(file.stem, "", versions())
    (to / "cases").mkdir(parents=True, exist_ok=True)
    table = importances.table()
    rows = (row.values() for row in table.to_pylist())
    (to / "importance.csv").write_text(csv_text([table.column_names, *rows]), encoding="utf-8", newline="")
    (to / "disagreements.csv").write_text(as_csv(Disagreement, pairs), encoding="utf-8", newline="")
    for case in every:
        if (key := _key_of_case(case)) in sheets:
            (to / sheets[key]).write_text(sheet(case, provenance), encoding="utf-8")
    linked = [(pair, sheets[_key_of_pair(pair)]) for pair in shown]
    (to / "index.html").write_text(overview(every, importances, linked, provenance), encoding="utf-8")
    for key in dict.fromkeys(chosen):
        say(f"case {key.id} of {key.model}: {to / sheets[key]}")
    say(f"{len(every):,} cases: open {to / 'index.html'}")


def _read(file: Path) -> pa.Table:
    """The rows of `file`, of schema WORDS. Raises UserError if it cannot be read, has another schema or no rows."""
    try:
        table = pq.read_table(file)
    except (OSError, pa.ArrowException) as error:
        advice = "give a file that explain-file or `export --relevance` wrote"
        raise UserError(f"cannot read {file}: {str(error).splitlines()[0]}: {advice}") from None
    try:
        check(table.schema, WORDS, str(file))
    except SchemaMismatch as error:
        raise UserError(
            f"{error}: give the file with a row for each word that explain-file or `export --relevance` wrote (not its "
            ".tokens.parquet); write it again if an older version did"
        ) from None
    if not table.num_rows:
        raise UserError(f"{file} is empty: there is no decision to show")
    return table


def _key_of_case(case: Case) -> _Key:
    """The key of a case."""
    return _Key(*case.name, case.model, case.task, case.decision)


def _key_of_pair(pair: Disagreement) -> _Key:
    """The key of the case on which two methods disagree."""
    return _Key(pair.id, pair.row, pair.model, pair.task, pair.decision)


def _files(keys: Sequence[_Key]) -> dict[_Key, str]:
    """A file name for each case, made from its id; a number keeps names apart that differ at most in capitals."""
    files: dict[_Key, str] = {}
    taken = set[str]()
    for key in dict.fromkeys(keys):
        stem = re.sub(r"[^\w-]+", "-", key.id).strip("-")[:80] or "case"
        number, candidate = 1, stem
        while candidate.lower() in taken:
            number += 1
            candidate = f"{stem}-{number}"
        taken.add(candidate.lower())
        files[key] = f"cases/{candidate}.html"
    return files
