"""`closelook decisions`: writes the sheet of a case, from rows by word."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from closelook.evaluation.explained.sheet import cases, sheets
from closelook.evaluation.report.page import Provenance
from closelook.evaluation.schema import WORDS, check
from closelook.evaluation.schema.versioned import SchemaMismatch
from closelook.lrp_core.records.types import UserError, nearest
from closelook.terminal import write_file
from closelook.versions import versions


def write_sheet(file: Path, name: str, to: Path) -> None:
    """Write a page about the case with the id `name` in the rows of `file`: a sheet for each model and task.

    Raises UserError for a file without rows by word, for an id that no case has, and if `to` cannot be written.
    """
    rows = _read(file)
    of_case = rows.filter(pc.equal(rows["id"], name))
    if not of_case.num_rows:
        raise UserError(f"{file} has no case {name!r}{nearest(name, rows['id'].unique().to_pylist())}")
    page = sheets(cases(of_case), Provenance(file.stem, "", versions()))
    write_file(to, page)


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
