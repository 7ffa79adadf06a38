"""The application that every command is added to, by `@command()` in a module `commands.py` of a folder here."""

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
RUNS, TEXTS, RECORDS = "Runs", "A text of your own", "What there is"


def command(heading: str, **settings: Any) -> Callable[[F], F]:
    """Add a function to the command line, shown under one of the headings; its records of options are spread out.

    `settings` are those of typer's `command`. The function's name is the command's, its docstring the help.
    """

    def add(function: F) -> F:
        app.command(rich_help_panel=heading, **settings)(grouped(function))
        return function

    return add
