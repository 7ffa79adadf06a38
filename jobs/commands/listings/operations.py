"""The table of docs/operations.md, made from the rules on operations."""

from __future__ import annotations

from inspect import cleandoc
from types import ModuleType

from closelook.jobs.commands.listings.documents import DOCS, markdown, rewrite
from closelook.lrp_core.operations import RULES
from closelook.lrp_core.operations.table import NAMES, TABLE, Handler, spellings

PAGE = DOCS / "operations.md"
START, END = "<!-- operations -->", "<!-- end of operations -->"


def page_table() -> str:
    """A section for each module of rules: what its text says, and its functions of torch."""
    return "\n" + "\n".join(map(_section, RULES)) + "\n"


def _section(module: ModuleType) -> str:
    title, _, text = cleandoc(module.__doc__ or "").partition("\n")
    rows = [_row(handler, names) for handler, names in NAMES.items() if handler.__module__ == module.__name__]
    table = markdown(("functions", "what they compute", "relevance may enter"), rows)
    return f"### {title.removesuffix('.')}\n{text}\n\n{table}"


def _row(handler: Handler, names: list[str]) -> tuple[str, str, str]:
    known = [name for name in dict.fromkeys(names) if any(func in TABLE for func in spellings(name))]
    text = " ".join(cleandoc(handler.__doc__ or "").split())
    carries = next(TABLE[func].carries for func in spellings(known[0]))
    return ", ".join(f"`{name}`" for name in known), text, ", ".join(carries) if carries else "everywhere"


if __name__ == "__main__":
    rewrite(PAGE, page_table(), START, END)
