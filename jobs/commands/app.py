"""The command-line application. Modules `commands.py` in the folders of jobs/commands add commands by `@command()`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import typer

from jobs.commands.options import grouped
from jobs.commands.stopping import Stoppable

F = TypeVar("F", bound=Callable[..., Any])

app = typer.Typer(
    cls=Stoppable,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Decomposition-based attributions for transformer language models, as a distributed benchmark.",
)

#: Headings of `closelook --help`.
RUNS, TEXTS, RECORDS = "Runs", "Texts of your own", "Lists and settings"


def command(heading: str, **settings: Any) -> Callable[[F], F]:
    """A decorator that adds a function to the command line, under one of the headings of `closelook --help`.

    The command has the function's name, and its docstring as help. A parameter that is a dataclass becomes an option
    for each of its fields. `settings` are arguments of typer's `command`.
    """

    def add(function: F) -> F:
        app.command(rich_help_panel=heading, **settings)(grouped(function))
        return function

    return add
