"""Users' own samples: JSON Lines, CSV or Parquet with a row a sample.

Columns: `text`; `slot`, the offset in `text` where the target goes, or `___` there instead; `target`; `foil` (may be
empty); `evidence`, which is words of the text that occur once, or [start, end) spans of characters of the text as it is
written, one or a list of them. In CSV, spans and lists are JSON. Other columns are kept in `meta.columns`.

For classifiers and regressors: `text`, `label` (a name that the model knows) or `score`, for pairs `second`, and where
the task's config says so, `evidence` in the (first) text.
"""

from __future__ import annotations

import csv
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
from evaluation.benchmark.sources.files import Record, fetch, json_lines
from evaluation.benchmark.sources.glue import score_of
from lrp_core.types import UserError, nearest

NAME = "samples"
SLOT = "___"
COLUMNS = ("text", "slot", "target", "foil", "evidence")
LABELLED = ("text", "second", "label", "score")


@dataclass(frozen=True)
class Wanted:
    """What a task whose samples have labels or scores wants of every row."""

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
    """Raises Malformed."""
    written = field(record, "text")
    if any(record.get(name) not in (None, "") for name in ("label", "score")):
        return _labelled(record, written)
    target = field(record, "target")
    foil = None if record.get("foil") in (None, "") else field(record, "foil")
    slot, marked = _slot(written, record.get("slot"))
    text = written[:slot] + written[slot + len(marked) :]

    def unmarked(span: Span) -> Span:
        """A span of what is written in the text without the marker."""
        start, end = span
        if marked and start < slot + len(marked) and end > slot:
            raise Malformed("evidence across the slot", written[start:end])
        shift = len(marked) if start >= slot + len(marked) else 0
        return start - shift, end - shift

    evidence = [unmarked(span) for span in _evidence(written, record.get("evidence"))]
    return sample(NAME, text, slot, target, foil, evidence=evidence, meta=_rest(record))


def _labelled(record: dict[str, Any], text: str) -> Row:
    """Raises Malformed."""
    for name in COLUMNS[1:-1]:
        if record.get(name) not in (None, "", []):
            raise Malformed(f"both a label or score and {name!r}", "a text that is judged as a whole has no slot")
    label = None if record.get("label") in (None, "") else str(record["label"]).strip()
    score = None if record.get("score") in (None, "") else score_of(record["score"])
    if label is not None and score is not None:
        raise Malformed("both a label and a score")
    second = None if record.get("second") is None else field(record, "second")
    evidence = () if record.get("evidence") in (None, "", []) else tuple(_evidence(text, record["evidence"]))
    meta = _rest({name: value for name, value in record.items() if name not in LABELLED})
    return sample(NAME, text, None, None, None, second=second, label=label, score=score, evidence=evidence, meta=meta)


def _slot(text: str, given: Any) -> tuple[int, str]:
    """(where the target goes, the marker that stands there). Raises Malformed."""
    marks = list(re.finditer("_{3,}", text))
    if given in (None, ""):
        if not marks:
            raise Malformed("no slot", f"write {SLOT} where the target goes, or give its offset as `slot`")
        if len(marks) > 1:
            raise Malformed(f"more than one {SLOT}", text)
        if marks[0].group() != SLOT:
            raise Malformed("the slot is not three underscores", marks[0].group())
        return marks[0].start(), SLOT
    if marks:
        raise Malformed(f"both a slot and {SLOT}", text)
    number = _parsed(given) if isinstance(given, str) else given
    if isinstance(number, float) and number.is_integer():
        number = int(number)  # as tables with empty cells hold integers
    if isinstance(number, bool) or not isinstance(number, int):
        raise Malformed("column 'slot' is not int", repr(given)[:80])
    if not 0 <= number <= len(text):
        raise Malformed("slot outside the text", f"{number} of {len(text)} characters")
    return number, ""


def _evidence(text: str, given: Any) -> Iterator[Span]:
    """Spans of `text`. Raises Malformed."""
    if isinstance(given, str) and given.lstrip().startswith("["):
        given = _parsed(given)
    parts = [given] if isinstance(given, str) or _is_span(given) else given
    if parts is None or parts in ([], [""]):
        raise Malformed("no evidence", "give the words or the spans that a method should find")
    if not isinstance(parts, list):
        raise Malformed("evidence is neither words nor spans", repr(given)[:80])
    for part in parts:
        if isinstance(part, str):
            yield _only(text, part)
        elif not _is_span(part):
            raise Malformed("evidence is neither words nor spans", repr(part)[:80])
        elif not 0 <= part[0] < part[1] <= len(text):
            raise Malformed("span outside the text", f"[{part[0]}, {part[1]}) of {len(text)} characters")
        else:
            yield part[0], part[1]


def _is_span(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(type(number) is int for number in value)


def _only(text: str, words: str) -> Span:
    """Where `words` stand in `text`, not as part of a longer word. Raises Malformed unless they stand there once."""
    words = words.strip()
    if not words:
        raise Malformed("no evidence", "an empty word")
    matches = list(re.finditer(rf"(?<!\w){re.escape(words)}(?!\w)", text))
    if not matches:
        raise Malformed("evidence is not in the text", words)
    if len(matches) > 1:
        raise Malformed("evidence occurs more than once", f"{words!r}, {len(matches)} times: give its span")
    return matches[0].span()


def _parsed(text: str) -> Any:
    with suppress(ValueError, RecursionError):
        return json.loads(text)
    return text


def _rest(record: dict[str, Any]) -> dict[str, Any]:
    """Other columns, as `meta` keeps them. Raises Malformed for a known column mistyped, and for what is not JSON."""
    rest = {str(name): value for name, value in record.items() if name not in COLUMNS}
    for name in rest:
        close = difflib.get_close_matches(name, [column for column in COLUMNS if column not in record], 1, 0.75)
        if close:
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
    """Whether a row of the user's files names a foil. What cannot be read is told when it is prepared, hence True."""
    try:
        rows = chain.from_iterable(map(records, fetch(path, SAMPLES.suffixes, SAMPLES.nested)))
        return any(isinstance(row, dict) and row.get("foil") not in (None, "") for _, row in rows)
    except UserError:
        return True


def comma_separated(file: Path) -> Iterator[Record]:
    """Rows under a header. Raises UserError for a header that names a column twice."""
    with file.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as stream:
        reader = csv.DictReader(stream, strict=True)
        header = reader.fieldnames or ()
        if len(set(header)) < len(header):
            raise UserError(f"{file} has two columns of one name: {', '.join(header)}")
        while True:
            try:
                row = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield f"{file.name}:{reader.reader.line_num}", Malformed("not CSV", str(error))
                continue
            inside = sum(str(value).count("\n") for value in row.values())  # line ends in quoted fields
            yield f"{file.name}:{reader.line_num - inside}", _checked(row)


def _checked(row: dict[Any, Any]) -> dict[str, str] | Malformed:
    if None in row or None in row.values():
        return Malformed("not as many fields as the header has")
    if any("\udc80" <= character <= "\udcff" for value in row.values() for character in value):
        return Malformed("not UTF-8")  # bytes that the decoder escaped
    return row


def parquet(file: Path) -> Iterator[Record]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        number = 0
        for batch in pq.ParquetFile(file).iter_batches(batch_size=1024):
            for row in batch.to_pylist():
                number += 1
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
