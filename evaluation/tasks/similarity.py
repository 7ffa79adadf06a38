"""Pairs of sentences of the demo language, with their similarity."""

from evaluation.benchmark.sources.generated import DEMO
from evaluation.tasks.record import Task

SIMILARITY = Task(
    name="similarity",
    title="similarity in the demo language",
    about="How much two sentences of the demo language share of subject (2), verb (1) and object (2).",
    sources=(DEMO,),
    predicts="the score",
    output="score",
    pair=True,
    evidence=None,
    evidence_about=(
        "none: subject, verb and object of both sentences decide, and samples hold spans of the first alone. The task "
        "is for perturbation."
    ),
    published=(1000, 16),
)
