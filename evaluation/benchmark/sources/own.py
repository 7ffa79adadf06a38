"""Users' own samples: JSON Lines, a JSON list, CSV or Parquet, with a row for each sample.

docs/benchmark.md lists the columns. A row is a text with a slot and a target, a text or pair that is judged as a whole,
or a prompt with its answer. `___` in a text marks the slot; evidence, sources and units are words that occur once, or
[start, end) spans of characters of the text as it is written. In CSV, spans and lists are JSON. Other columns are kept
in `meta.columns`, and those of further rows with the same content in `meta.repeated`.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from itertools import chain, islice
from typing import Any

from closelook.evaluation.benchmark.labels import index_of
from closelook.evaluation.benchmark.samples import (
    Malformed,
    Row,
    Span,
    chat_of,
    hash_of,
    is_reject,
    meta_of,
    rejecting,
    sample,
)
from closelook.evaluation.benchmark.sources.base import Source, column_of, field, one_sample
from closelook.evaluation.benchmark.sources.files import IN_FOLDERS, Record, fetch, records
from closelook.evaluation.benchmark.sources.judged import score_of
from closelook.lrp_core.records.types import UserError, nearest

Fields = dict[str, Any]  # a row of a user's file, by column
NAME = "samples"
SLOT = "___"
COLUMNS = ("text", "slot", "target", "foil", "evidence", "cluster")
ANSWERED = ("prompt", "messages", "answer", "sources", "units", "evidence", "cluster")
LABELLED = ("text", "second", "label", "score")
ID = "id"  # the user's own name of a row, among other columns
_FORMS = "{}: give words of the text, or [start, end] in characters"
REPEATED = "repeated"  # in `meta` of a sample, the other columns of its further rows
KNOWN = tuple(dict.fromkeys((*COLUMNS, *LABELLED, ID)))  # the names that `columns` of a task's config may give
FIRST_ROWS = 1000  # whose columns decide what a task's config leaves out


@dataclass(frozen=True)
class Wanted:
    """The demands of a task on the rows of users' own samples."""

    output: str = "token"  # label or score: texts that are judged as a whole
    labels: tuple[str, ...] = ()  # that the task's models have; none where they are not known
    numbered: bool = True  # a label may be written as the number of an output: the task's models number theirs alike
    #: True: every row must have evidence. False: evidence is ignored. None: every row must have it if a token is
    #: predicted, and none may have it otherwise.
    evidence: bool | None = None
    answers: bool = False  # whole answers are explained: where `evidence` is None, some rows may have evidence

    def taken(self, row: Row) -> Row:
        """The row with the evidence that the task counts. Raises Malformed for a row that the task does not accept."""
        if self.output == "token" and row["slot"] is None:
            raise Malformed("a text by itself", "give a target, or set the task's `output` to label or score")
        if self.output != "token" and row["slot"] is not None:
            raise Malformed("a target", f"the task's output is a {self.output} of the whole text: leave the target out")
        other = {"label": "score", "score": "label"}.get(self.output)
        if other and row[other] is not None:
            raise Malformed(f"a {other}", f"the task's `output` is {self.output}: give a {self.output} instead")
        if row["label"] is not None and self.labels:
            self._check_label(row["label"])
        return self._with_evidence(row)

    def _check_label(self, label: str) -> None:
        """Raises Malformed for a label that no model of the task has."""
        if index_of(label, self.labels, numbers=self.numbered) is not None:
            return
        if index_of(label, self.labels) is not None:
            detail = f"{label}, but the task's models number labels in different ways: give the label's name"
            raise Malformed("a label by its number", detail)
        raise Malformed("unknown label", f"{label!r}{nearest(label, self.labels)}")

    def _with_evidence(self, row: Row) -> Row:
        """The row with its evidence, or without if the task ignores it."""
        if self.evidence is False:
            return row | {"evidence": []}
        if self.answers and self.evidence is None:
            return row
        needed = self.output == "token" if self.evidence is None else self.evidence
        if needed and not row["evidence"]:
            advice = "give the words or the spans that a method should find, or set `evidence: false` for the task"
            raise Malformed("no evidence", advice)
        if row["evidence"] and not needed:
            raise Malformed("evidence", "set `evidence: true` for the task to score it, or false to ignore it")
        return row


def ids_of(meta: str) -> list[str | None]:
    """The `id` of a sample with this `meta`, and of each further row of the same content; None where a row has none."""
    known = json.loads(meta)
    rows = [known.get("columns", {}), *known.get(REPEATED, ())]
    return [None if row.get(ID) is None else str(row[ID]) for row in rows]


def distinct_rows(source: Source, records: Iterable[Record], fields: Wanted) -> Iterator[Row]:
    """The samples and rejects of `records`, in their order; a row with the content of an earlier one is a reject.

    Of users' own rows, those that `fields` does not accept are rejects. A further row with the content of an earlier
    sample has its `sample_id`, and under REPEATED its other columns, unless what else decides its numbers differs.
    """
    seen: dict[str, str] = {}  # by sample, of users' own rows: a hash of evidence, cluster, messages, sources and units
    for where, record in records:
        for row in source.rows((where, record)):
            if is_reject(row):
                yield row
                continue
            name, out = row["sample_id"], list[Row]()
            with rejecting(out, "source", sample_id=name, where=where):
                taken = fields.taken(row) if source is SAMPLES else row
                marks, columns = "", {}
                if source is SAMPLES:
                    meta = meta_of(taken)
                    columns = meta.pop("columns", {})
                    marks = hash_of([taken["evidence"], taken["cluster"], meta])
                if name not in seen:
                    seen[name] = marks
                    out.append(taken)
                elif source is not SAMPLES:
                    raise Malformed("same content as an earlier row")
                elif seen[name] != marks:
                    detail = "with other evidence, another cluster, or other messages, sources or units"
                    raise Malformed("same content as an earlier row", detail)
                else:
                    out.append({"sample_id": name, REPEATED: columns})
            yield from out


def renamed(record: Any, columns: Mapping[str, str]) -> Any:
    """`record`, a row of a file, with its columns renamed: `columns` maps known names to the names in the file.

    A column of the file that has a known name but is not meant is dropped. Returns Malformed, without raising it, for
    a row that lacks a column. Anything but a row with columns is returned as it is.
    """
    if not columns or not isinstance(record, dict):
        return record
    for name, of_file in columns.items():
        if of_file not in record:
            detail = f"`columns` says that it holds {name}; the row's columns are {', '.join(record)}"
            return Malformed(f"no column {of_file!r}", detail)
    moved = {*columns, *columns.values()}
    rest = {name: value for name, value in record.items() if name not in moved}
    return rest | {name: record[of_file] for name, of_file in columns.items()}


def parse(record: Any) -> Row:
    """The sample of a row of the user's file: an answer, a text that is read whole, or a text with a slot.

    Raises Malformed for a row that is none of these.
    """
    is_asked = isinstance(record, dict) and ("prompt" in record or _has(record, "messages"))
    if is_asked and ("text" not in record or _has(record, "answer")):
        return answered(NAME, record, spaced=True)
    if isinstance(record, dict) and "text" not in record:
        columns = ", ".join(map(str, record))
        raise Malformed("no column 'text'", f"the columns are {columns}: name the text's as `columns: {{text: ...}}`")
    written = field(record, "text")
    if _has(record, "label") or _has(record, "score"):
        return _whole(record, written)
    if not _has(record, "slot") and not _has(record, "target") and SLOT not in written:
        return _whole(record, written)
    target = field(record, "target")
    foil = field(record, "foil") if _has(record, "foil") else None
    slot, marked = _slot(written, record)
    behind = slot + len(marked)

    def unmarked(span: Span) -> Span:
        """A span of the text as written, moved to where it lies once the marker `___` is removed."""
        start, end = span
        if marked and start < behind and end > slot:
            raise Malformed(
                "evidence across the slot", f"{written[start:end]!r}: give the parts beside {SLOT} as two spans"
            )
        shift = len(marked) if start >= behind else 0
        return start - shift, end - shift

    evidence = [unmarked(span) for span in _evidence(written, record.get("evidence"))]
    text = written[:slot] + written[behind:]
    meta, cluster = _rest(record, COLUMNS), _cluster(record)
    return sample(NAME, text, slot, target, foil, evidence=evidence, meta=meta, cluster=cluster)


def _has(record: Fields, name: str) -> bool:
    """True where a row's column is there and not empty: neither null, "" nor []."""
    return record.get(name) not in (None, "", [])


def _whole(record: Fields, text: str) -> Row:
    """The sample of a text, or of a pair, that a model reads whole, with its label or score if the row has one."""
    for name in ("slot", "target", "foil"):
        if _has(record, name):
            if not _has(record, "label") and not _has(record, "score"):
                raise Malformed(f"{name!r} without a slot", f"give `slot` and `target` too, or leave out {name!r}")
            raise Malformed(f"{name!r} beside a label or score", f"leave out {name!r}, or the label or score")
    label = _label(record["label"]) if _has(record, "label") else None
    score = score_of(record["score"]) if _has(record, "score") else None
    if label is not None and score is not None:
        raise Malformed("both a label and a score", "give one of them")
    second = None if record.get("second") is None else field(record, "second")
    evidence = tuple(_evidence(text, record.get("evidence")))
    meta = _rest(record, (*COLUMNS, *LABELLED))
    cluster = _cluster(record)
    return sample(NAME, text, second=second, label=label, score=score, evidence=evidence, meta=meta, cluster=cluster)


def _label(written: Any) -> str:
    """The label as text; a whole number without the decimal point that tables with empty cells give it."""
    if isinstance(written, float) and written.is_integer():
        written = int(written)
    return str(written).strip()


def answered(source: str, record: Fields, spaced: bool) -> Row:
    """The generic sample of an answer to a prompt: the prompt is its text, the answer its target at the text's end.

    With `spaced`, the space between a prompt and its answer belongs to the answer: a last space of the prompt moves
    there, and a space is added where there is no white space. The answer to a chat stays as it is. Raises Malformed for
    a row that lacks a column, and for sources, units or evidence not in the prompt.
    """
    meta: dict[str, Any] = {}
    if _has(record, "messages"):
        if _has(record, "prompt"):
            raise Malformed("both a prompt and messages", "give one of them")
        text, meta["turns"] = chat_of(field(record, "messages", list))
    else:
        text = field(record, "prompt")
    answer = field(record, "answer")
    if spaced and "turns" not in meta:
        if text.endswith(" "):
            text, answer = text[:-1], f" {answer}"
        elif not text[-1:].isspace() and not answer[:1].isspace():
            answer = f" {answer}"
    for name in ("sources", "units"):
        if _has(record, name):
            meta[name] = [list(span) for span in _evidence(text, record[name], name.removesuffix("s"))]
    evidence = tuple(_evidence(text, record.get("evidence")))
    meta |= _rest(record, ANSWERED)
    return sample(source, text, len(text), answer, evidence=evidence, meta=meta, cluster=_cluster(record))


def _cluster(record: Fields) -> str | None:
    """The name of the row's cluster as text; None where it has none."""
    return str(record["cluster"]) if _has(record, "cluster") else None


def _slot(text: str, record: Fields) -> tuple[int, str]:
    """(position of the target, the marker at this position). Raises Malformed."""
    marks = list(re.finditer("_{3,}", text))
    if not _has(record, "slot"):
        if not marks:
            raise Malformed("no slot", f"write {SLOT} where the target goes, or give its offset as `slot`")
        if len(marks) > 1:
            raise Malformed(f"more than one {SLOT}", "keep it where the target goes")
        if marks[0].group() != SLOT:
            raise Malformed("the slot is not three underscores", f"write {SLOT}, not {marks[0].group()}")
        return marks[0].start(), SLOT
    if marks:
        raise Malformed(f"both a slot and {SLOT}", f"leave out the column, or {SLOT} in the text")
    written = record["slot"]
    number = _parsed(written)
    if isinstance(number, float) and number.is_integer():
        number = int(number)  # as tables with empty cells hold integers
    if type(number) is not int:
        raise Malformed("column 'slot' is not int", repr(written)[:80])
    return number, ""


def _evidence(text: str, written: Any, name: str = "evidence") -> Iterator[Span]:
    """The spans of `text` that the column `name` gives, as `written`: words, spans, or a list of either."""
    if isinstance(written, str) and written.lstrip().startswith("["):
        written = _parsed(written)
    parts = [written] if isinstance(written, str) or _is_span(written) else written
    if parts is None or parts in ([], [""]):
        return
    if not isinstance(parts, list):
        raise Malformed(f"{name} is neither words nor spans", _FORMS.format(repr(written)[:80]))
    for part in parts:
        if isinstance(part, str):
            yield _only(text, part, name)
            continue
        if not _is_span(part):
            raise Malformed(f"{name} is neither words nor spans", _FORMS.format(repr(part)[:80]))
        start, end = part
        if not 0 <= start < end <= len(text):
            raise Malformed("span outside the text", f"[{start}, {end}) of {len(text)} characters")
        yield start, end


def _is_span(value: Any) -> bool:
    """True for a list of two whole numbers."""
    return isinstance(value, list) and [type(number) for number in value] == [int, int]


def _only(text: str, words: str, name: str) -> Span:
    """The span of `words` in `text`, not within a longer word. Raises Malformed unless they occur exactly once."""
    words = words.strip()
    if not words:
        raise Malformed(f"no {name}", "an empty word")
    matches = list(re.finditer(rf"(?<!\w){re.escape(words)}(?!\w)", text))
    if not matches:
        raise Malformed(f"{name} is not in the text", words[:80])
    if len(matches) > 1:
        detail = f"{words[:80]!r}, {len(matches)} times: give [start, end] in characters of the one you mean"
        raise Malformed(f"{name} occurs more than once", detail)
    return matches[0].span()


def _parsed(written: Any) -> Any:
    """The value of `written` as JSON; `written` itself where it is no JSON."""
    with suppress(TypeError, ValueError, RecursionError):
        return json.loads(written)
    return written


def _rest(record: Fields, known: tuple[str, ...]) -> dict[str, Any]:
    """The columns that are not `known`, as entries of `meta`: {"columns": {name: value}}, {} without such columns."""
    rest = {str(name): value for name, value in record.items() if name not in known}
    for name in rest:
        near = _meant(name, [column for column in known if column not in record])
        if near is not None:
            raise Malformed(f"unknown column {name!r}", f"did you mean {near!r}?")
    for name, value in rest.items():
        try:
            rest[name] = json.loads(json.dumps(value, default=as_text))
        except (TypeError, ValueError):
            detail = f"{name!r} holds a {type(value).__name__}: write it as text, or drop the column"
            raise Malformed("a column with values that JSON cannot hold", detail) from None
    return {"columns": rest} if rest else {}


def as_text(value: Any) -> str:
    """A date, time, duration or decimal as text, for JSON (`default` of `json.dumps`): dates and times by ISO 8601.

    Raises TypeError for a value of another type.
    """
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, timedelta | Decimal):
        return str(value)
    raise TypeError(f"JSON cannot hold a {type(value).__name__}")


def _meant(name: str, missing: Sequence[str]) -> str | None:
    """The column among those `missing` that `name` is a mistyping of; None if it is near none."""
    close = difflib.get_close_matches(name.casefold(), missing, 1, 0.75)
    sure = [near for near in close if near in COLUMNS or difflib.SequenceMatcher(None, name, near).ratio() >= 0.9]
    return next(iter(sure), None)


def has_foils(path: str, columns: Mapping[str, str]) -> bool:
    """True if a row of the user's files has a foil.

    Also True if the files cannot be read: `closelook prepare` then reports the error.
    """
    name = columns.get("foil", "foil")
    try:
        rows = chain.from_iterable(map(records, fetch(path, SAMPLES.suffixes, SAMPLES.nested)))
        return any(isinstance(row, dict) and _has(row, name) for _, row in rows)
    except (UserError, OSError):
        return True


def settings_by_columns(path: str, columns: Mapping[str, str], output: str | None) -> dict[str, Any]:
    """The settings `output` and `evidence` of a task that the columns of the user's files decide; {}: the defaults.

    `output` is the task's own, if its config gives one. Texts with a label or score are judged as a whole, and their
    evidence is scored if they have any. Samples without a column of evidence are not scored against evidence. Returns
    {} also if the files cannot be read: `closelook prepare` then reports the error.
    """
    named, filled = _columns_in(path, columns)
    if "text" not in named:
        return {}
    settings: dict[str, Any] = {}
    if output is None:
        output = next((name for name in ("label", "score") if name in filled), None)
        if output is not None:
            settings["output"] = output
    if output is not None and "evidence" in filled:
        settings["evidence"] = True
    if output is None and "evidence" not in named:
        settings["evidence"] = False
    return settings


def _columns_in(path: str, columns: Mapping[str, str]) -> tuple[set[str], set[str]]:
    """(columns of the first rows of the user's files by their known names, those of them that a row fills)."""
    named, filled = set[str](), set[str]()
    try:
        rows = chain.from_iterable(map(records, fetch(path, SAMPLES.suffixes, SAMPLES.nested)))
        for _, row in islice(rows, FIRST_ROWS):
            record = renamed(row, columns)
            if isinstance(record, dict):
                named.update(record)
                filled.update(name for name in record if _has(record, name))
    except (UserError, OSError):
        return set(), set()
    return named, filled


SAMPLES = Source(
    name=NAME,
    title="the user's own samples",
    suffixes=IN_FOLDERS,
    records=records,
    rows=one_sample(parse),
    brings_evidence=True,
    texts=column_of,
)
