"""Commands around one's own configs and runs: init, config, compare."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from jobs.commands import terminal
from jobs.commands.options import Config, Root, Set


def add_to(app: typer.Typer) -> None:
    """Give `app` these commands."""
    app.command()(init)
    app.command()(config)
    app.command()(compare)


def init(
    file: Annotated[Path, typer.Argument(help="The config to write: FILE.yaml.")],
    model: Annotated[str, typer.Option("--model", "-m", help="demo/gpt2, a hub id or a directory.")],
    data: Annotated[Path | None, typer.Option("--data", help="Your samples: JSON Lines, CSV or Parquet.")] = None,
    method: Annotated[str | None, typer.Option("--method", help="Methods, separated by commas.")] = None,
) -> None:
    """Write a commented config for your model and data."""
    from jobs.commands.init import write

    write(file, model, data, method, terminal.console)


def config(
    config: Config = None,
    root: Root = None,
    set: Set = None,
    keys: Annotated[
        str | None, typer.Option("--keys", help="Explain keys with this in their name; '' for all.")
    ] = None,
) -> None:
    """Print the configuration in effect, defaults filled in; or, with --keys, what keys there are."""
    from jobs.commands.config import show, show_keys

    if keys is not None:
        show_keys(keys, terminal.console)
        return
    loaded, _ = terminal.load_run(config, root, set, is_made=root is not None and config is None)
    show(loaded, terminal.console)


def compare(
    first: Annotated[str, typer.Argument(help="The root of one run.")],
    second: Annotated[str, typer.Argument(help="The root of the other.")],
    metric: Annotated[str | None, typer.Option("--metric", help="What to compare; default: the leading one.")] = None,
    to: Annotated[Path | None, typer.Option("--csv", help="Also write every number there.")] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Also write a page with samples of both runs.")] = None,
) -> None:
    """What changed between two runs: settings, cells, scores with paired tests, cost."""
    from jobs.commands.compare import show

    show(first, second, metric, to, html, terminal.console)
