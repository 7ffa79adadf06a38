"""The commands that explain a file of texts, and show one of its cases."""

from __future__ import annotations

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

Texts = Annotated[str, typer.Argument(metavar="IN", help="JSON Lines, a JSON list, CSV or Parquet; also a URL.")]
Tables = Annotated[Path, typer.Argument(metavar="OUT.parquet", help="Rows by word; OUT.tokens.parquet has the tokens.")]
Encoding = Annotated[str, typer.Option("--encoding", help="The encoding of IN, such as latin-1 or cp1252.")]
Workers = Annotated[int, typer.Option("--workers", help="Processes, each with the model.", min=1)]


@command(TEXTS, "explain-file tickets.csv words.parquet --model demo/gpt2-sentiment", name="explain-file")
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

    A classifier's own decision is explained where a row has no label; a language model's rows need a target.
    """
    from closelook.methods import parse_methods

    of.check("file")
    methods = parse_methods(method)  # before the heavy imports: a mistyped name shows at once
    columns = named_columns(column)

    from closelook.jobs.commands.file_run import explain_file as write

    with naming_options():
        complete = write(file, to, of, methods, columns, encoding, workers, explanation, truncate)
    if not complete:
        raise typer.Exit(1)


Words = Annotated[
    Path, typer.Argument(metavar="ROWS.parquet", help="Rows by word, from explain-file or export --relevance.")
]
CaseId = Annotated[str, typer.Argument(metavar="ID", help="The id of the case.")]
Sheet = Annotated[Path, typer.Argument(metavar="SHEET.html", help="The page to write.")]


@command(TEXTS, "decisions words.parquet 1 ticket-1.html")
def decisions(file: Words, case: CaseId, to: Sheet) -> None:
    """Write a sheet about the decision on one text: its relevant words, its probability and the alternative."""
    from closelook.jobs.commands.deciding import write_sheet

    write_sheet(file, case, to)
