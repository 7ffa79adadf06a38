"""The application that every command is added to (`@app.command()`), and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from jobs.commands.stopping import Stoppable

app = typer.Typer(
    cls=Stoppable,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Decomposition-based attributions for transformer language models, as a distributed benchmark.",
)

Config = Annotated[
    str | None,
    typer.Option(
        "--config",
        "-c",
        help="A name in jobs/conf (demo, paper, attnlrp, real, smoke) or a path; else that of --root, else demo.",
        show_default=False,
    ),
]
Root = Annotated[str | None, typer.Option("--root", help="Where everything is kept: a path, s3:// or gs:// URL.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key, as often as needed.")
]
Wait = Annotated[
    float, typer.Option("--wait", metavar="SECONDS", help="How long to wait for another run of this root.")
]
MODEL = typer.Option("--model", "-m", help="demo/gpt2, a hub id or a directory.")
Json = Annotated[Path | None, typer.Option("--json", help="Also write every number as JSON.")]
