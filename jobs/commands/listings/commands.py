"""Commands that list methods, tasks, models and config keys."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from closelook.jobs.commands.options import RECORDS, Columns, Model, RunOptions, command, named_columns


@command(RECORDS, "methods attnlrp")
def methods(
    name: Annotated[str | None, typer.Argument(help="Describe this method in full.", show_default=False)] = None,
) -> None:
    """List the methods: what they need and give, what they cost, their options."""
    from closelook.jobs.commands.listings.records import show_methods

    show_methods(name)


@command(RECORDS, "tasks")
def tasks() -> None:
    """List the tasks: what is predicted, the sources of samples, and what counts as evidence."""
    from closelook.jobs.commands.listings.records import show_tasks

    show_tasks()


@command(RECORDS, "models")
def models(
    every: Annotated[bool, typer.Option("--all", help="Check every architecture again.")] = False,
) -> None:
    """List the kinds and families of models, which methods apply to them, and the architectures that rules explain."""
    from closelook.jobs.commands.listings import architectures
    from closelook.jobs.commands.listings.records import show_models

    if every:
        architectures.check()
    else:
        show_models()
        architectures.show()


File = Annotated[Path, typer.Argument(help="The config to write: FILE.yaml.")]
Data = Annotated[Path | None, typer.Option("--data", help="Your samples: JSON Lines, CSV or Parquet.")]
Methods = Annotated[str | None, typer.Option("--method", help="Methods, separated by commas.")]


@command(RECORDS, "init mine.yaml --model demo/gpt2 --data mine.jsonl")
def init(file: File, model: Model, data: Data = None, method: Methods = None, column: Columns = None) -> None:
    """Write a commented config for your model and data."""
    from closelook.jobs.commands.init import write

    write(file, model, data, method, named_columns(column))


@command(RECORDS, "config --keys perturb.")
def config(
    run: RunOptions,
    keys: Annotated[
        str | None, typer.Option("--keys", help="Explain the keys whose name contains this; '' for all.")
    ] = None,
) -> None:
    """Print the configuration in effect, defaults filled in; or, with --keys, explain keys."""
    from closelook.jobs.commands.listings.config import show, show_keys

    if keys is not None:
        return show_keys(keys)
    loaded, _ = run.load()
    show(loaded)
