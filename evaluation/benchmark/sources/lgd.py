"""Goldberg's (2019) agreement sentences, drawn from Linzen et al. (2016): a verb against its form of other number."""

from __future__ import annotations

from evaluation.benchmark.samples import Malformed, Row, sample
from evaluation.benchmark.sources.base import Source, one_sample
from evaluation.benchmark.sources.files import tab_separated

MASK = "***mask***"


def parse(columns: list[str]) -> Row:
    """The sample of a row: number of attractors, sentence, sentence with MASK for its verb, verb, its other form.

    Raises Malformed for a row of another form.
    """
    if len(columns) != 5:
        raise Malformed("not five columns", f"{len(columns)} columns")
    attractors, sentence, masked, good, bad = columns
    if not attractors.isdecimal():
        raise Malformed("the number of attractors is no number", attractors)
    if masked.count(MASK) != 1:
        raise Malformed("no mask marker" if MASK not in masked else "more than one mask marker", masked)
    if masked.replace(MASK, good) != sentence:
        raise Malformed("the masked sentence is not the sentence", masked)
    slot = masked.index(MASK)
    return sample("lgd", masked.replace(MASK, ""), slot, good, bad, meta={"attractors": int(attractors)})


LGD = Source(
    name="lgd",
    title="Subject-verb agreement sentences of Goldberg (2019), after Linzen et al. (2016)",
    url="https://github.com/yoavg/bert-syntax",
    licence="Apache 2.0",
    suffixes=(".tsv",),
    records=tab_separated,
    rows=one_sample(parse),
    file_url="https://raw.githubusercontent.com/yoavg/bert-syntax/master/lgd_dataset.tsv",
)
