"""The commands that explain a file of texts, and show one of its cases."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from closelook.jobs.commands.options import (
    TEXTS,
    Columns,
    Explanation,
    Methods,
    ModelOptions,
    Truncate,
    command,
    named_columns,
    naming_options,
)
from closelook.terminal import complain

Texts = Annotated[str, typer.Argument(metavar="IN", help="JSON Lines, a JSON list, CSV or Parquet; also a URL.")]
Tables = Annotated[Path, typer.Argument(metavar="OUT.parquet", help="Rows by word; OUT.tokens.parquet has the tokens.")]
Encoding = Annotated[str, typer.Option("--encoding", help="The encoding of IN, such as latin-1 or cp1252.")]
Workers = Annotated[int, typer.Option("--workers", help="Processes, each with the model.", min=1)]


@command(TEXTS, name="explain-file")
def explain_file(
    of: ModelOptions,
    file: Texts,
    to: Tables,
    method: Methods = "attnlrp",
    column: Columns = None,
    encoding: Encoding = "utf-8",
    workers: Workers = 1,
    explanation: Explanation = None,
    truncate: Truncate = False,
) -> None:
    """Explain every text of a file, as rows by word and by token. After an interruption, the same command continues.

    Where a row has no target, the model's own decision (its label or next word) is explained.
    """
    from closelook.methods import parse_methods

    of.check("file")
    parse_methods(method)  # before the heavy imports: a mistyped name shows at once
    columns = named_columns(column)

    from closelook.jobs.commands.questions.opened import chosen_device
    from closelook.jobs.commands.texts.computing import Asking
    from closelook.jobs.commands.texts.explaining import explain_file as write
    from closelook.jobs.commands.texts.parts import Job, WorkerDied

    with naming_options():
        job = Job(replace(of, device=chosen_device(of.device)), method, Asking(explanation, truncate))
        try:
            write(file, to, job, columns, workers, encoding)
        except WorkerDied as error:
            complain(f"error: {error}: run the same command again to continue", "red")
            raise typer.Exit(1) from None


Words = Annotated[
    Path, typer.Argument(metavar="ROWS.parquet", help="Rows by word, from explain-file or export --relevance.")
]
CaseId = Annotated[str, typer.Argument(metavar="ID", help="The id of the case.")]
Sheet = Annotated[Path, typer.Argument(metavar="SHEET.html", help="The page to write.")]


@command(TEXTS)
def decisions(file: Words, case: CaseId, to: Sheet) -> None:
    """Write a sheet about the decision on one text: its relevant words, its probability and the alternative."""
    from closelook.jobs.commands.texts.deciding import write_sheet

    write_sheet(file, case, to)
