"""Sentiment of whole reviews (AttnLRP 4.1)."""

from evaluation.benchmark.sources.imdb import IMDB as SOURCE
from evaluation.benchmark.sources.imdb import LABELS
from evaluation.tasks.record import NO_EVIDENCE, Task

IMDB = Task(
    name="imdb",
    title="sentiment of reviews",
    about="Whether a review of a film is negative or positive.",
    sources=(SOURCE,),
    predicts="the sentiment",
    output="label",
    labels=LABELS,
    evidence=None,
    evidence_about=NO_EVIDENCE,
    published=(25_000, 300),
)
