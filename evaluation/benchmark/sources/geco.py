"""GECO (Wilming et al. 2024): sentences of Wikipedia in a female and a male form, with the words that differ marked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from closelook.evaluation.benchmark.samples import Malformed, Row, Span, sample
from closelook.evaluation.benchmark.sources.base import Source, field, one_sample
from closelook.evaluation.benchmark.sources.files import json_lines
from closelook.evaluation.benchmark.sources.judged import label_of

LABELS = ("female", "male")  # by their numbers in the files


def spans_of(words: Sequence[str], marks: Sequence[int]) -> Iterator[Span]:
    """The spans of the marked words in the text of `words` with a space between each and the next."""
    start = 0
    for word, mark in zip(words, marks, strict=True):
        if mark:
            yield start, start + len(word)
        start += len(word) + 1


def parse(record: Any) -> Row:
    """The sample of a sentence: its words with spaces between them. Raises Malformed.

    Both forms of a sentence are one cluster.
    """
    words, marks = field(record, "sentence", list), field(record, "ground_truth", list)
    if len(words) != len(marks):
        raise Malformed("not as many marks as words", f"{len(marks)} marks, {len(words)} words")
    return sample(
        "geco",
        " ".join(words),
        label=label_of(field(record, "target", int), LABELS),
        evidence=tuple(spans_of(words, marks)),
        cluster=str(field(record, "sentence_idx", int)),
    )


GECO = Source(
    name="geco",
    title="GECO, gendered sentences of Wikipedia (Wilming et al. 2024)",
    url="https://github.com/braindatalab/gecobench",
    licence="BSD-3-Clause",
    suffixes=(".jsonl",),
    records=json_lines,
    rows=one_sample(parse),
    brings_evidence=True,
)
