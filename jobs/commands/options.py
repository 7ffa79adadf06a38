"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

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
