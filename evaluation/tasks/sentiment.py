"""Opinions of the demo language, with their labels and the words that decide them."""

from evaluation.benchmark.demo.judged import LABELS
from evaluation.benchmark.sources.generated import DEMO
from evaluation.tasks.record import Task

SENTIMENT = Task(
    name="sentiment",
    title="sentiment of the demo language",
    about="Whether a sentence of the demo language says something negative or positive of its subject.",
    sources=(DEMO,),
    predicts="the sentiment",
    output="label",
    labels=LABELS,
    evidence="source",
    evidence_about=(
        "the word of praise or blame that is said of the subject, and the negation before it, if there is one; words "
        "of praise, blame and negation elsewhere decide nothing."
    ),
    published=(1000, 13),
)
