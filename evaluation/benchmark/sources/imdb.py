"""IMDB reviews (Maas et al. 2011): a file a review, in the folders `pos` and `neg`; and the hub's rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from evaluation.benchmark.samples import Malformed, Row, sample
from evaluation.benchmark.sources.base import Source, column_of, field, one_sample
from evaluation.benchmark.sources.files import Record
from evaluation.benchmark.sources.glue import SST2_LABELS, label_of

LABELS = SST2_LABELS  # of the hub's numbers 0 and 1
FOLDERS = {"neg": "negative", "pos": "positive"}


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


def parse(record: Any) -> Row:
    """The sample of a review. Line breaks stay in the text as `<br />`, with which models were trained.

    Raises Malformed for a review without a label.
    """
    label = label_of(field(record, "label", object), LABELS)
    meta = {} if record.get("rating") is None else {"rating": record["rating"]}
    return sample("imdb", field(record, "text").strip(), label=label, meta=meta)


IMDB = Source(
    name="imdb",
    title="IMDB reviews of films (Maas et al. 2011)",
    url="https://ai.stanford.edu/~amaas/data/sentiment",
    licence="for research",
    suffixes=(".txt",),
    records=review,
    rows=one_sample(parse),
    texts=column_of,
    nested=True,
    hub="stanfordnlp/imdb",
    hub_splits=("test",),
)
