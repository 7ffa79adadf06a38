"""`closelook config`: prints the effective configuration, or explains keys; also writes the table of docs/config.md."""

from __future__ import annotations

import yaml

from jobs.commands.listings.documents import DOCS, markdown, rewrite
from jobs.commands.terminal import say, say_table
from jobs.config import RunConfig
from jobs.config.keys import keys
from lrp_core.records.types import UserError, nearest

PAGE = DOCS / "config.md"
START, END = "<!-- keys -->", "<!-- end of keys -->"
_HEADINGS = ("key", "takes", "default", "what it is")


def show(config: RunConfig) -> None:
    """Print the configuration as YAML that `--config` takes: defaults filled in, overrides applied."""
    text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    say(text, end="")


def show_keys(word: str) -> None:
    """Print the keys whose path contains `word`. Raises UserError, with the nearest key, if there are none."""
    shown = [(key.path, key.takes, key.default, key.about) for key in keys() if word in key.path]
    if not shown:
        names = [key.path for key in keys()]
        near = nearest(word, [*names, *(name.rpartition(".")[2] for name in names)])
        advice = near if "mean" in near else ": `closelook config --keys ''` lists all"
        raise UserError(f"no key has {word!r} in its name{advice}")
    say_table(_HEADINGS, shown)


def page_table() -> str:
    """The table of docs/config.md."""
    rows = []
    for key in keys():
        default = f"`{key.default}`" if key.default else ""
        rows.append((f"`{key.path}`", key.takes, default, key.about))
    return markdown(_HEADINGS, rows)


if __name__ == "__main__":
    rewrite(PAGE, page_table(), START, END)
