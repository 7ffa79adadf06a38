"""Data sets of GLUE (Wang et al. 2019): in its own tables, as JSON Lines with the names of labels, and on the hub."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from evaluation.benchmark.samples import Malformed, Row, sample
from evaluation.benchmark.sources.base import Source, field, one_sample
from evaluation.benchmark.sources.files import Record, json_lines, tab_separated

HUB = "nyu-mll/glue"
NO_LABEL = ("-", "-1", -1)  # what the data sets write where annotators did not agree, or the label is held back

#: The names of labels, by the numbers that tables and the hub have.
SST2_LABELS = ("negative", "positive")
MNLI_LABELS = ("entailment", "neutral", "contradiction")
QNLI_LABELS = ("entailment", "not_entailment")


def labelled(
    source: str, columns: Sequence[Sequence[str]], names: Sequence[str] = (), gold: Sequence[str] = ("label",)
) -> Callable[[Any], Row]:
    """How a record becomes a sample; `columns` are those of the text, or of both texts, and `gold` that of the label.

    Each has all its names in the layouts there are, and the first that a record has counts. `names` are those of the
    labels by number; without them the gold column is a score. What the function raises is Malformed.
    """

    def parse(record: Any) -> Row:
        texts = [_text(field(record, _present(record, known))) for known in columns]
        written = field(record, _present(record, gold), object)
        answer = {"label": label_of(written, names)} if names else {"score": score_of(written)}
        return sample(source, texts[0], None, None, None, second=texts[1] if len(texts) > 1 else None, **answer)

    return parse


def label_of(written: Any, names: Sequence[str]) -> str:
    """The name of a label that is written as its name or number. Raises Malformed."""
    text = str(written).strip()
    if text in map(str, NO_LABEL):
        raise Malformed("no gold label", repr(written))
    if text.isdecimal() and int(text) < len(names):
        return names[int(text)]
    label = next((name for name in names if name.casefold() == text.casefold()), None)
    if label is None:
        raise Malformed("unknown label", f"{text!r}; there are {', '.join(names)}")
    return label


def score_of(written: Any) -> float:
    """Raises Malformed."""
    try:
        return float(written)
    except (TypeError, ValueError, OverflowError):
        raise Malformed("the score is no number", repr(written)[:80]) from None


def _present(record: Any, names: Sequence[str]) -> str:
    """The first of `names` that the record has, else the first of all, which is missed then."""
    return next((name for name in names if isinstance(record, dict) and name in record), names[0])


def _text(written: str) -> str:
    return written.strip()


def table(file: Path) -> Iterator[Record]:
    """Rows under a header, between tabs; quotation marks are part of the texts."""
    header: list[str] | None = None
    for where, row in tab_separated(file):
        if isinstance(row, Malformed):
            yield where, row
        elif header is None:
            header = [name.strip() for name in row]
        elif len(row) != len(header):
            yield where, Malformed("not as many fields as the header has", f"{len(row)} of {len(header)}")
        else:
            yield where, dict(zip(header, row, strict=True))


def table_or_json(file: Path) -> Iterator[Record]:
    return table(file) if file.suffix == ".tsv" else json_lines(file)


def similarity_records(file: Path) -> Iterator[Record]:
    """STS: a table of GLUE, or CSV without a header whose columns are two sentences and their score."""
    if file.suffix == ".tsv":
        yield from table(file)
        return
    with file.open(encoding="utf-8", errors="surrogateescape", newline="") as stream:
        reader = csv.reader(stream, strict=True)
        start = 1
        while True:
            try:
                row = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield f"{file.name}:{start}", Malformed("not CSV", str(error))
                start = reader.line_num + 1
                continue
            where, start = f"{file.name}:{start}", reader.line_num + 1
            if not row:
                continue
            if len(row) != 3:
                yield where, Malformed("not three columns", f"{len(row)} columns")
            elif any("\udc80" <= character <= "\udcff" for value in row for character in value):
                yield where, Malformed("not UTF-8")  # bytes that the decoder escaped
            else:
                yield where, dict(zip(("sentence1", "sentence2", "score"), row, strict=True))


SST2 = Source(
    name="sst2",
    title="SST-2, sentences of film reviews (Socher et al. 2013)",
    url="https://nlp.stanford.edu/sentiment",
    licence="for research, as GLUE distributes it",
    suffixes=(".tsv", ".jsonl"),
    records=table_or_json,
    rows=one_sample(labelled("sst2", [("sentence",)], SST2_LABELS)),
    hub=HUB,
    hub_config="sst2",
    hub_splits=("validation",),
)
MNLI = Source(
    name="mnli",
    title="MultiNLI (Williams et al. 2018)",
    url="https://cims.nyu.edu/~sbowman/multinli",
    licence="OANC and others, see the paper",
    suffixes=(".jsonl", ".tsv"),
    records=table_or_json,
    rows=one_sample(
        labelled("mnli", [("premise", "sentence1"), ("hypothesis", "sentence2")], MNLI_LABELS, ("label", "gold_label"))
    ),
    hub=HUB,
    hub_config="mnli",
    hub_splits=("validation_mismatched",),
)
QNLI = Source(
    name="qnli",
    title="QNLI, questions and sentences of SQuAD (Rajpurkar et al. 2016, Wang et al. 2019)",
    url="https://gluebenchmark.com",
    licence="CC BY-SA 4.0",
    suffixes=(".tsv", ".jsonl"),
    records=table_or_json,
    rows=one_sample(labelled("qnli", [("question",), ("sentence",)], QNLI_LABELS)),
    hub=HUB,
    hub_config="qnli",
    hub_splits=("validation",),
)
STSB = Source(
    name="stsb",
    title="STS benchmark (Cer et al. 2017)",
    url="https://ixa2.si.ehu.eus/stswiki",
    licence="CC BY-SA 4.0",
    suffixes=(".csv", ".tsv"),
    records=similarity_records,
    rows=one_sample(labelled("stsb", [("sentence1",), ("sentence2",)], gold=("score", "label"))),
    hub=HUB,
    hub_config="stsb",
    hub_splits=("validation",),
)
