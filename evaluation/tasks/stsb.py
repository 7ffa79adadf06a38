"""Similarity of sentences, a score (NormXLogit 4)."""

from evaluation.benchmark.sources.glue import STSB as SOURCE
from evaluation.tasks.record import NO_EVIDENCE, Task

STSB = Task(
    name="stsb",
    title="similarity of sentences",
    about="How alike in meaning two sentences are, from 0 to 5.",
    sources=(SOURCE,),
    predicts="the score",
    output="score",
    pair=True,
    evidence=None,
    evidence_about=NO_EVIDENCE,
    published=(1500, 31),
)
