"""Sentiment of sentences (NormXLogit 4)."""

from evaluation.benchmark.sources.glue import SST2 as SOURCE
from evaluation.benchmark.sources.glue import SST2_LABELS
from evaluation.tasks.record import NO_EVIDENCE, Task

SST2 = Task(
    name="sst2",
    title="sentiment of sentences",
    about="Whether a sentence of a film review is negative or positive.",
    sources=(SOURCE,),
    predicts="the sentiment",
    output="label",
    labels=SST2_LABELS,
    evidence=None,
    evidence_about=NO_EVIDENCE,
    published=(872, 25),
)
