"""Texts with a label or score: data sets of GLUE (Wang et al. 2019), and IMDB reviews (Maas et al. 2011).

GLUE is read from its own tables, from JSON Lines with the names of labels, and from the hub; IMDB from a file a review,
in the folders `pos` and `neg`, and from the hub.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from closelook.evaluation.benchmark.samples import Malformed, Row, sample
from closelook.evaluation.benchmark.sources.base import Source, column_of, field, one_sample
from closelook.evaluation.benchmark.sources.files import Record, csv_rows, headed, json_lines, named, tab_separated

HUB = "nyu-mll/glue"
NO_LABEL = ("-", "-1")  # what the data sets write where annotators did not agree, or the label is held back

#: The names of labels, by the numbers that tables and the hub have.
SST2_LABELS = ("negative", "positive")
MNLI_LABELS = ("entailment", "neutral", "contradiction")
QNLI_LABELS = ("entailment", "not_entailment")
FOLDERS = {"neg": "negative", "pos": "positive"}  # of IMDB, with the label of their reviews


def labelled(
    source: str, columns: Sequence[Sequence[str]], names: Sequence[str] = (), gold: Sequence[str] = ("label",)
) -> Callable[[Any], Row]:
    """A function that makes the sample of a record, and raises Malformed for one that is not labelled.

    `columns` has an entry for the text, or for both texts of a pair, and `gold` is the entry of the label. An entry
    lists the names of the column in the published layouts, of which the first that a record has is taken. `names` are
    the names of labels by number; without them the gold column is a score.
    """

    def parse(record: Any) -> Row:
        """The sample of a record. Raises Malformed."""
        text, *seconds = (field(record, _present(record, known)).strip() for known in columns)
        second = seconds[0] if seconds else None
        written = field(record, _present(record, gold), object)
        if names:
            return sample(source, text, second=second, label=label_of(written, names))
        return sample(source, text, second=second, score=score_of(written))

    return parse


def label_of(written: Any, names: Sequence[str]) -> str:
    """The name of a label that is written as its name or number. Raises Malformed."""
    text = str(written).strip()
    if text in NO_LABEL:
        raise Malformed("no gold label", f"{written!r} stands for none: take a split whose labels are published")
    if text.isdecimal() and int(text) < len(names):
        return names[int(text)]
    label = next((name for name in names if name.casefold() == text.casefold()), None)
    if label is None:
        raise Malformed("unknown label", f"{text!r}; the labels are {', '.join(names)}")
    return label


def score_of(written: Any) -> float:
    """The score that is `written` as a number or text. Raises Malformed for anything else."""
    try:
        return float(written)
    except (TypeError, ValueError, OverflowError):
        raise Malformed("the score is no number", repr(written)[:80]) from None


def _present(record: Any, names: Sequence[str]) -> str:
    """The first of `names` that the record has; the first name if it has none, so that an error names this one."""
    return next((name for name in names if isinstance(record, dict) and name in record), names[0])


def table(file: Path) -> Iterator[Record]:
    """The rows of a table with tabs and a header, as {column: text}; quotation marks are part of the texts."""
    return headed(tab_separated(file), file, strip=True)


def table_or_json(file: Path) -> Iterator[Record]:
    """The rows of a table (.tsv) or of JSON Lines."""
    return table(file) if file.suffix == ".tsv" else json_lines(file)


def similarity_records(file: Path) -> Iterator[Record]:
    """The rows of STS: a table of GLUE, or CSV without a header whose columns are two sentences and their score."""
    if file.suffix == ".tsv":
        yield from table(file)
        return
    for where, row in csv_rows(file):
        if isinstance(row, list) and len(row) != 3:
            yield where, Malformed("not three columns", f"{len(row)} columns")
        else:
            yield where, row if isinstance(row, Malformed) else named(("sentence1", "sentence2", "score"), row)


def _glue(name: str, split: str, parse: Callable[[Any], Row], **facts: Any) -> Source:
    """The record of a data set of GLUE; `split` is that on the hub, `facts` are further fields of the record."""
    layouts: dict[str, Any] = {
        "records": table_or_json,
        "suffixes": (".tsv", ".jsonl"),
        "hub": HUB,
        "hub_configs": (name,),
    }
    return Source(name=name, rows=one_sample(parse), hub_splits=(split,), **layouts | facts)


SST2 = _glue(
    "sst2",
    "validation",
    labelled("sst2", [("sentence",)], SST2_LABELS),
    title="SST-2, sentences of film reviews (Socher et al. 2013)",
    url="https://nlp.stanford.edu/sentiment",
    licence="for research, as GLUE distributes it",
)
MNLI = _glue(
    "mnli",
    "validation_mismatched",
    labelled("mnli", [("premise", "sentence1"), ("hypothesis", "sentence2")], MNLI_LABELS, ("label", "gold_label")),
    title="MultiNLI (Williams et al. 2018)",
    url="https://cims.nyu.edu/~sbowman/multinli",
    licence="OANC and others, see the paper",
)
QNLI = _glue(
    "qnli",
    "validation",
    labelled("qnli", [("question",), ("sentence",)], QNLI_LABELS),
    title="QNLI, questions and sentences of SQuAD (Rajpurkar et al. 2016, Wang et al. 2019)",
    url="https://gluebenchmark.com",
    licence="CC BY-SA 4.0",
)
STSB = _glue(
    "stsb",
    "validation",
    labelled("stsb", [("sentence1",), ("sentence2",)], gold=("score", "label")),
    title="STS benchmark (Cer et al. 2017)",
    url="https://ixa2.si.ehu.eus/stswiki",
    licence="CC BY-SA 4.0",
    suffixes=(".csv", ".tsv"),
    records=similarity_records,
)


def review(file: Path) -> Iterator[Record]:
    """The review in a file ID_RATING.txt of the folders in FOLDERS; files of other folders yield nothing."""
    folder = file.parent.name
    if folder not in FOLDERS:
        return
    where = f"{folder}/{file.name}"
    rating = file.stem.rpartition("_")[2]
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        yield where, Malformed("not UTF-8", str(error))
        return
    yield where, {"text": text, "label": FOLDERS[folder], "rating": int(rating) if rating.isdecimal() else None}


def parse_review(record: Any) -> Row:
    """The sample of a review. Line breaks stay in the text as `<br />`, with which models were trained.

    Raises Malformed for a review without a label.
    """
    label = label_of(field(record, "label", object), SST2_LABELS)
    meta = {} if record.get("rating") is None else {"rating": record["rating"]}
    return sample("imdb", field(record, "text").strip(), label=label, meta=meta)


IMDB = Source(
    name="imdb",
    title="IMDB reviews of films (Maas et al. 2011)",
    url="https://ai.stanford.edu/~amaas/data/sentiment",
    licence="for research",
    suffixes=(".txt",),
    records=review,
    rows=one_sample(parse_review),
    texts=column_of,
    nested=True,
    hub="stanfordnlp/imdb",
    hub_splits=("test",),
)
