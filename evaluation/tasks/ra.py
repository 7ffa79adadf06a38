"""Reflexive anaphora (Close Look 4.1)."""

from evaluation.benchmark.sources.blimp import BLIMP
from evaluation.benchmark.sources.generated import DEMO
from evaluation.tasks.record import Task

RA = Task(
    name="ra",
    title="reflexive anaphora",
    about="The reflexive pronoun that agrees with its antecedent, against its twin of the other number.",
    sources=(BLIMP, DEMO),
    predicts="the reflexive",
    evidence="antecedent",
    evidence_about=(
        "the head token of the reflexive's antecedent, by coreference where a model is configured, else by the parse. "
        "The text ends at the slot, without the full stop."
    ),
    figure="Figure 3",
    published=(1000, 8),
    share={"masked": "23", "causal": "35-36"},
)
