"""Tables of docs/ that commands write from records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def markdown(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [" | ".join(headings), " | ".join("---" for _ in headings)]
    for row in rows:
        lines.append(" | ".join(cell.replace("|", r"\|") for cell in row))
    return "".join(f"| {line} |\n" for line in lines)


def rewrite(page: Path, table: str, start: str, end: str) -> None:
    """Put `table` between the lines `start` and `end` of the page. Raises ValueError where they are missing."""
    from jobs.bench.page import rewritten

    page.write_text(rewritten(page.read_text(encoding="utf-8"), table, start, end), encoding="utf-8")
