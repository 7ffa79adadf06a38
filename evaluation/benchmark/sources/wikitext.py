"""Articles of Wikipedia: WikiText's raw files (Merity et al. 2016), and dumps as extracted to JSON Lines or on the hub.

A sample is a whole article without its title; how much of it is read is the task's business.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from evaluation.benchmark.samples import Malformed, Row, sample
from evaluation.benchmark.sources.base import Source, field, one_sample
from evaluation.benchmark.sources.files import Record, json_lines, lines

_TITLE = re.compile(r" = ([^=\s].*[^=\s]|[^=\s]) = ?")  # sections have more signs, as in " = = Career = = "
_SECTION = re.compile(r"(= )+.*( =)+")


def articles(texts: Iterable[tuple[str, str | Malformed]]) -> Iterator[Record]:
    """Articles of WikiText from its non-blank lines, each located by the line of its title, which is not part of it.

    A line between equals signs that goes on with the sentence before it is a formula, not a title.
    """
    where, title, parts = "", "", list[str]()
    for line_place, line in texts:
        if isinstance(line, Malformed):
            yield line_place, line
            continue
        heading = None if parts and _is_unfinished(parts[-1]) else _TITLE.fullmatch(line)
        if heading is None:
            parts.append(line.strip())
            continue
        if title:
            yield where, {"title": title, "text": "\n".join(parts)}
        where, title, parts = line_place, heading[1], []
    if title:
        yield where, {"title": title, "text": "\n".join(parts)}


def _is_unfinished(line: str) -> bool:
    """True where a line of running text breaks off inside a sentence."""
    return " . " in line and line[-1].isalnum()


def parse(record: Any, source: str = "wikitext") -> Row:
    """Raises Malformed."""
    text = field(record, "text").strip()
    return sample(source, text, meta={"title": field(record, "title")})


def parse_dump(record: Any) -> Row:
    return parse(record, "wikipedia")


def paragraphs(article: Any, column: str) -> Iterator[str]:
    """The lines of an article that are neither blank nor the title of a section. Raises Malformed."""
    for line in field(article, "text").splitlines():
        if line.strip() and not _SECTION.fullmatch(line.strip()):
            yield line


def raw_articles(file: Path) -> Iterator[Record]:
    return articles(lines(file))


def hub_articles(rows: Iterable[dict[str, Any]]) -> Iterator[Record]:
    """Articles from the hub's rows, each of which is a line."""
    return articles(
        (f"row {number}", row["text"].rstrip("\n")) for number, row in enumerate(rows) if row["text"].strip()
    )


WIKITEXT = Source(
    name="wikitext",
    title="WikiText-103, raw (Merity et al. 2016)",
    url="https://huggingface.co/datasets/Salesforce/wikitext",
    licence="CC BY-SA 3.0",
    suffixes=(".raw", ".tokens"),
    records=raw_articles,
    rows=one_sample(parse),
    texts=paragraphs,
    hub="Salesforce/wikitext",
    hub_config="wikitext-103-raw-v1",
    hub_splits=("train", "validation", "test"),
    hub_records=hub_articles,
)
WIKIPEDIA = Source(
    name="wikipedia",
    title="Wikipedia, articles of a dump",
    url="https://dumps.wikimedia.org",
    licence="CC BY-SA 4.0",
    suffixes=(".jsonl", ".json"),
    records=json_lines,
    rows=one_sample(parse_dump),
    texts=paragraphs,
    hub="wikimedia/wikipedia",
    hub_config="20231101.en",
    hub_splits=("train",),
)
