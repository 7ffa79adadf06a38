"""Users' own samples: JSON Lines, CSV or Parquet with a row a sample.

Columns: `text`; `slot`, the offset in `text` where the target goes, or `___` there instead; `target`; `foil` (may be
empty); `evidence`, which is words of the text that occur once, or [start, end) spans of characters of the text as it is
written, one or a list of them. `cluster` (may be empty) names what samples that are alike share, as an article or a
template: intervals and tests then count clusters. In CSV, spans and lists are JSON. Other columns are kept in
`meta.columns`.

For classifiers and regressors: `text`, `label` (a name that the model knows) or `score`, for pairs `second`, and where
the task's config says so, `evidence` in the (first) text.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from evaluation.benchmark.labels import plain
from evaluation.benchmark.samples import Malformed, Row, Span, sample
from evaluation.benchmark.sources.base import Source, column_of, field, one_sample
from evaluation.benchmark.sources.files import Record, csv_rows, fetch, json_lines, named
from evaluation.benchmark.sources.glue import score_of
from lrp_core.types import UserError, nearest

NAME = "samples"
SLOT = "___"
COLUMNS = ("text", "slot", "target", "foil", "evidence", "cluster")
LABELLED = ("text", "second", "label", "score")


@dataclass(frozen=True)
class Wanted:
    """The demands of a task whose samples have labels or scores on every row."""

    output: str  # label or score
    labels: tuple[str, ...] = ()  # that the task's models have; none where they are not known

    def check(self, row: Row) -> None:
        """Raises Malformed for a row without label or score, and for a label that no model of the task has."""
        if row[self.output] is None:
            raise Malformed(f"no {self.output}", f"the task asks for a {self.output} in every row")
        label, known = row["label"], [plain(name) for name in self.labels]
        if label is not None and known and plain(label) not in known:
            raise Malformed("unknown label", f"{label!r}{nearest(plain(label), known)}")


def parse(record: Any) -> Row:
    """The sample of a row. Raises Malformed."""
    written = field(record, "text")
    if _has(record, "label") or _has(record, "score"):
        return _labelled(record, written)
    target = field(record, "target")
    foil = field(record, "foil") if _has(record, "foil") else None
    slot, marked = _slot(written, record)
    behind = slot + len(marked)

    def unmarked(span: Span) -> Span:
        """A span of what is written in the text without the marker."""
        start, end = span
        if marked and start < behind and end > slot:
            raise Malformed("evidence across the slot", written[start:end])
        shift = len(marked) if start >= behind else 0
        return start - shift, end - shift

    evidence = [unmarked(span) for span in _evidence(written, record.get("evidence"))]
    text = written[:slot] + written[behind:]
    row = sample(NAME, text, slot, target, foil, evidence=evidence, meta=_rest(record))
    return row | {"cluster": _cluster(record)}


def _has(record: dict[str, Any], name: str) -> bool:
    """True where a row's column is there and not empty."""
    return record.get(name) not in (None, "")


def _labelled(record: dict[str, Any], text: str) -> Row:
    """Raises Malformed."""
    for name in ("slot", "target", "foil"):
        if _has(record, name) and record[name] != []:
            raise Malformed(f"both a label or score and {name!r}", "a text that is judged as a whole has no slot")
    label = str(record["label"]).strip() if _has(record, "label") else None
    score = score_of(record["score"]) if _has(record, "score") else None
    if label is not None and score is not None:
        raise Malformed("both a label and a score")
    second = None if record.get("second") is None else field(record, "second")
    written = record.get("evidence")
    evidence = () if written in (None, "", []) else tuple(_evidence(text, written))
    meta = _rest({name: value for name, value in record.items() if name not in LABELLED})
    row = sample(NAME, text, second=second, label=label, score=score, evidence=evidence, meta=meta)
    return row | {"cluster": _cluster(record)}


def _cluster(record: dict[str, Any]) -> str | None:
    return str(record["cluster"]) if _has(record, "cluster") else None


def _slot(text: str, record: dict[str, Any]) -> tuple[int, str]:
    """(where the target goes, the marker that stands there). Raises Malformed."""
    marks = list(re.finditer("_{3,}", text))
    if not _has(record, "slot"):
        if not marks:
            raise Malformed("no slot", f"write {SLOT} where the target goes, or give its offset as `slot`")
        if len(marks) > 1:
            raise Malformed(f"more than one {SLOT}", text)
        if marks[0].group() != SLOT:
            raise Malformed("the slot is not three underscores", marks[0].group())
        return marks[0].start(), SLOT
    if marks:
        raise Malformed(f"both a slot and {SLOT}", text)
    written = record["slot"]
    number = _parsed(written)
    if isinstance(number, float) and number.is_integer():
        number = int(number)  # as tables with empty cells hold integers
    if type(number) is not int:
        raise Malformed("column 'slot' is not int", repr(written)[:80])
    if not 0 <= number <= len(text):
        raise Malformed("slot outside the text", f"{number} of {len(text)} characters")
    return number, ""


def _evidence(text: str, written: Any) -> Iterator[Span]:
    """Spans of `text`. Raises Malformed."""
    if isinstance(written, str) and written.lstrip().startswith("["):
        written = _parsed(written)
    parts = [written] if isinstance(written, str) or _is_span(written) else written
    if parts is None or parts in ([], [""]):
        raise Malformed("no evidence", "give the words or the spans that a method should find")
    if not isinstance(parts, list):
        raise Malformed("evidence is neither words nor spans", repr(written)[:80])
    for part in parts:
        if isinstance(part, str):
            yield _only(text, part)
            continue
        if not _is_span(part):
            raise Malformed("evidence is neither words nor spans", repr(part)[:80])
        start, end = part
        if not 0 <= start < end <= len(text):
            raise Malformed("span outside the text", f"[{start}, {end}) of {len(text)} characters")
        yield start, end


def _is_span(value: Any) -> bool:
    return isinstance(value, list) and [type(number) for number in value] == [int, int]


def _only(text: str, words: str) -> Span:
    """The span of `words` in `text`, not within a longer word. Raises Malformed unless they stand there once."""
    words = words.strip()
    if not words:
        raise Malformed("no evidence", "an empty word")
    matches = list(re.finditer(rf"(?<!\w){re.escape(words)}(?!\w)", text))
    if not matches:
        raise Malformed("evidence is not in the text", words)
    if len(matches) > 1:
        raise Malformed("evidence occurs more than once", f"{words!r}, {len(matches)} times: give its span")
    return matches[0].span()


def _parsed(written: Any) -> Any:
    """The value that a text holds as JSON; anything else as it is."""
    with suppress(TypeError, ValueError, RecursionError):
        return json.loads(written)
    return written


def _rest(record: dict[str, Any]) -> dict[str, Any]:
    """Other columns, as `meta` keeps them. Raises Malformed for a known column mistyped, and for what is not JSON."""
    rest = {str(name): value for name, value in record.items() if name not in COLUMNS}
    missing = [column for column in COLUMNS if column not in record]
    for name in rest:
        if close := difflib.get_close_matches(name, missing, 1, 0.75):
            raise Malformed(f"unknown column {name!r}", f"did you mean {close[0]!r}?")
    try:
        json.dumps(rest)
    except (TypeError, ValueError) as error:
        raise Malformed("a column that is neither text nor numbers", str(error)) from None
    return {"columns": rest} if rest else {}


def records(file: Path) -> Iterator[Record]:
    """The rows of a file, each with its line (of Parquet: its row, counted from 1).

    Raises UserError for a file of another kind.
    """
    if file.suffix not in _READERS:
        raise UserError(f"{file} is no {', '.join(_READERS)} file: users' own samples come in one of these")
    return _READERS[file.suffix](file)


def has_foils(path: str) -> bool:
    """True where a row of the user's files names a foil, and where none can be read: `prepare` tells why."""
    try:
        rows = chain.from_iterable(map(records, fetch(path, SAMPLES.suffixes, SAMPLES.nested)))
        return any(isinstance(row, dict) and _has(row, "foil") for _, row in rows)
    except UserError:
        return True


def comma_separated(file: Path) -> Iterator[Record]:
    """Rows under a header. Raises UserError for a header that names a column twice."""
    header: list[str] | None = None
    for where, row in csv_rows(file, "utf-8-sig"):
        if isinstance(row, Malformed):
            yield where, row
        elif header is None:
            header = row
            if len(set(row)) < len(row):
                raise UserError(f"{file} has two columns of one name: {', '.join(row)}")
        elif len(row) != len(header):
            yield where, Malformed("not as many fields as the header has")
        else:
            yield where, named(header, row)


def parquet(file: Path) -> Iterator[Record]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        batches = pq.ParquetFile(file).iter_batches(batch_size=1024)
        rows = chain.from_iterable(batch.to_pylist() for batch in batches)
        for number, row in enumerate(rows, start=1):
            yield f"{file.name}:{number}", row
    except pa.ArrowException as error:
        raise UserError(f"{file} is not Parquet that can be read: {' '.join(str(error).split())}") from None


_READERS = {".jsonl": json_lines, ".csv": comma_separated, ".parquet": parquet}

SAMPLES = Source(
    name=NAME,
    title="the user's own samples",
    url="",
    licence="the user's own",
    suffixes=tuple(_READERS),
    records=records,
    rows=one_sample(parse),
    brings_evidence=True,
    texts=column_of,
)
