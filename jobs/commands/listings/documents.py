"""Writes tables made from records into pages of docs/."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

DOCS = Path(__file__).resolve().parents[3] / "docs"


def markdown(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [" | ".join(headings), " | ".join("---" for _ in headings)]
    for row in rows:
        lines.append(" | ".join(cell.replace("|", r"\|") for cell in row))
    return "".join(f"| {line} |\n" for line in lines)


def rewrite(page: Path, table: str, start: str, end: str) -> None:
    """Put `table` between the lines `start` and `end` of the file `page`. Raises ValueError if these are missing."""
    page.write_text(rewritten(page.read_text(encoding="utf-8"), table, start, end), encoding="utf-8")


def rewritten(text: str, block: str, start: str, end: str) -> str:
    """`text` with `block` between the lines `start` and `end`. Raises ValueError if these are missing."""
    head, found_start, rest = text.partition(start)
    _, found_end, tail = rest.partition(end)
    if not (found_start and found_end):
        raise ValueError(f"the page lacks the lines {start} and {end}")
    return f"{head}{start}\n{block}{end}{tail}"
