"""The command that compares two runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from jobs.commands.app import RUNS, command

First = Annotated[str, typer.Argument(help="The root of the first run.")]
Second = Annotated[str, typer.Argument(help="The root of the second run.")]
Metric = Annotated[str | None, typer.Option("--metric", help="The metric to compare; default: the first.")]
Csv = Annotated[Path | None, typer.Option("--csv", help="Also write the scores to this CSV file.")]
Html = Annotated[Path | None, typer.Option("--html", help="Also write an HTML page with samples of both runs.")]


@command(RUNS)
def compare(first: First, second: Second, metric: Metric = None, to: Csv = None, html: Html = None) -> None:
    """Compare two runs: their settings, cells, scores (with paired tests) and cost."""
    from jobs.commands.comparison.compare import show

    show(first, second, metric, to, html)
