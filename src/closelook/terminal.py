"""Prints on the screen, and writes the files that users ask for."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.table import Table

from closelook.evaluation.report.spreadsheet import csv_text
from closelook.lrp_core.records.types import UserError

console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 160)
errors = Console(stderr=True, highlight=False, soft_wrap=True)


@contextmanager
def encodable(stream: object) -> Iterator[None]:
    """Inside, the stream writes characters that its encoding lacks as escapes, such as `\\u6211`, and does not fail."""
    if not isinstance(stream, TextIOWrapper):
        yield
        return
    before = stream.errors
    stream.reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        with suppress(BrokenPipeError):  # it flushes, and the reader of a pipe may have gone
            stream.reconfigure(errors=before)


def say(text: RenderableType, style: str | None = None, end: str = "\n") -> None:
    """Print on the screen. Brackets in `text` are printed, not read as markup."""
    with encodable(console.file):
        console.print(text, style=style, end=end, markup=False)


def complain(text: str, style: str | None = None) -> None:
    """Print on standard error, as :func:`say` does."""
    errors.print(text, style=style, markup=False)


def say_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[RenderableType]],
    numbers: Collection[str] = (),
    title: str | None = None,
    lines: bool = True,
) -> None:
    """Print a table. Columns whose headings are among `numbers` are right-aligned; `lines` rules below the headings."""
    box = SIMPLE_HEAD if lines else None
    table = Table(title=title, title_justify="left", box=box, pad_edge=lines, collapse_padding=lines)
    for heading in headings:
        table.add_column(heading, justify="right" if heading in numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    say(table)


def write_file(path: Path, text: str, newline: str | None = None, advice: str = "") -> None:
    """Write a file that the user asked for, and print its path followed by `advice`.

    Raises UserError if the file cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8", newline=newline)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None
    say(f"written to {path}{advice}")


def as_json(value: Any) -> str:
    """`value` as indented JSON, with null for numbers that are not finite."""
    return json.dumps(fit_for_json(value), indent=1, ensure_ascii=False, allow_nan=False)


def as_csv(kind: type[Any], rows: Iterable[Any]) -> str:
    """Records of the dataclass `kind` as CSV, with a column for each of its fields and the line ends of CSV."""
    names = [field.name for field in fields(kind)]
    return csv_text([names, *([getattr(row, name) for name in names] for row in rows)])


def fit_for_json(value: Any) -> Any:
    """`value` with None in place of NaN and infinity, which JSON cannot express."""
    if isinstance(value, dict):
        return {key: fit_for_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return list(map(fit_for_json, value))
    unknown = isinstance(value, float) and not math.isfinite(value)
    return None if unknown else value


def not_finite(dtype: str) -> str:
    """The end of a message about relevance that overflowed in this precision."""
    advice = ": try float32 or bfloat16" if dtype == "float16" else ""
    return f"not finite in {dtype}{advice}"
