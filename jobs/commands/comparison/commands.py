"""The command that compares two runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from jobs.commands.app import RUNS, command


@command(RUNS)
def compare(
    first: Annotated[str, typer.Argument(help="The root of the first run.")],
    second: Annotated[str, typer.Argument(help="The root of the second run.")],
    metric: Annotated[str | None, typer.Option("--metric", help="The metric to compare; default: the first.")] = None,
    to: Annotated[Path | None, typer.Option("--csv", help="Also write the scores to this CSV file.")] = None,
    html: Annotated[
        Path | None, typer.Option("--html", help="Also write an HTML page with samples of both runs.")
    ] = None,
) -> None:
    """Compare two runs: their settings, cells, scores (with paired tests) and cost."""
    from jobs.commands.comparison.compare import show

    show(first, second, metric, to, html)
