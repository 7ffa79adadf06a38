"""Plain texts, one in each line, and articles of Wikipedia: WikiText's raw files (Merity et al. 2016), and dumps.

A sample of an article is the whole article without its title; the task says how much of it is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from closelook.evaluation.benchmark.samples import Malformed, Row, sample
from closelook.evaluation.benchmark.sources.base import HubRows, Source, field, one_sample
from closelook.evaluation.benchmark.sources.files import Record, json_lines, lines


def texts(record: Any, column: str) -> Iterator[str]:
    """The text of a record: a line, or a row of the hub, whose `column` holds it. Raises Malformed."""
    yield record.strip() if isinstance(record, str) else field(record, column)


def parse(record: Any) -> Row:
    """The sample of a text. Raises Malformed for an empty one."""
    (text,) = texts(record, "text")
    return sample(TEXT.name, text)


TEXT = Source(
    name="text",
    title="a text a line",
    suffixes=(".txt",),
    records=lines,
    rows=one_sample(parse),
    hub_splits=("train",),
    texts=texts,
)


_TITLE = re.compile(r" = ([^=\s].*[^=\s]|[^=\s]) = ?")  # sections have more signs, as in " = = Career = = "
_SECTION = re.compile(r"(= )+.*( =)+")


def articles(texts: Iterable[tuple[str, str | Malformed]]) -> Iterator[Record]:
    """The articles of WikiText, from (place, line) of its lines that are not blank; an article's place is its title's.

    The title is no part of the article's text. A line between equals signs is a title, unless the line before breaks
    off inside a sentence: then it is a formula.
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
    """True for a line of running text (it has a full stop) that ends in a letter or digit, inside a sentence."""
    return " . " in line and line[-1].isalnum()


def parse_article(record: Any, source: str) -> Row:
    """The sample of an article of this source. Raises Malformed for an empty one."""
    text = field(record, "text").strip()
    return sample(source, text, meta={"title": field(record, "title")})


def paragraphs(article: Any, column: str) -> Iterator[str]:
    """The lines of an article that are neither blank nor the title of a section. Raises Malformed."""
    for line in field(article, "text").splitlines():
        if line.strip() and not _SECTION.fullmatch(line.strip()):
            yield line


def raw_articles(file: Path) -> Iterator[Record]:
    """The articles of a file of WikiText."""
    return articles(lines(file))


def hub_articles(rows: HubRows) -> Iterator[Record]:
    """The articles of WikiText's rows on the hub, each of which is a line."""
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
    rows=one_sample(partial(parse_article, source="wikitext")),
    texts=paragraphs,
    hub="Salesforce/wikitext",
    hub_configs=("wikitext-103-raw-v1",),
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
    rows=one_sample(partial(parse_article, source="wikipedia")),
    texts=paragraphs,
    hub="wikimedia/wikipedia",
    hub_configs=("20231101.en",),
    hub_splits=("train",),
)
