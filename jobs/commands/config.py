"""`closelook config`: the effective configuration, and every key that there is, on the screen and in docs/config.md."""

from __future__ import annotations

from pathlib import Path

import yaml
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from jobs.config import RunConfig
from jobs.config.keys import Key, keys
from lrp_core.types import UserError, nearest

PAGE = Path(__file__).parents[2] / "docs" / "config.md"
START, END = "<!-- keys -->", "<!-- end of keys -->"


def show(config: RunConfig, console: Console) -> None:
    """Print the configuration as YAML that `--config` takes: defaults filled in, overrides applied."""
    text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    console.print(text, end="", markup=False)


def show_keys(word: str, console: Console) -> None:
    """Keys whose path has `word` in it. Raises UserError where there is none, with the nearest."""
    shown = [key for key in keys() if word in key.path]
    if not shown:
        names = [key.path for key in keys()]
        near = nearest(word, [*names, *(name.rpartition(".")[2] for name in names)])
        raise UserError(f"no key has {word!r} in its name{near if 'mean' in near else ': closelook config --keys'}")
    table = Table(box=SIMPLE_HEAD, collapse_padding=True)
    for heading in ("key", "takes", "default", "what it is"):
        table.add_column(heading, overflow="fold")
    for key in shown:
        table.add_row(key.path, key.takes, key.default, key.about)
    console.print(table, markup=False)


def page_table() -> str:
    """The table of docs/config.md."""
    lines = ["| key | takes | default | what it is |", "|---|---|---|---|"]
    return "\n".join([*lines, *map(_row, keys()), ""])


def _row(key: Key) -> str:
    cells = (f"`{key.path}`", key.takes, f"`{key.default}`" if key.default else "", key.about)
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def main() -> None:
    """Rewrites the table in docs/config.md."""
    from jobs.bench.page import rewritten

    PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8"), page_table(), START, END), encoding="utf-8")


if __name__ == "__main__":
    main()
