"""Extractive question answering (Close Look 4.1; the prompt is AttnLRP's, appendix B.1)."""

from evaluation.benchmark.sources.generated import DEMO
from evaluation.benchmark.sources.squad import SQUAD
from evaluation.tasks.record import Task

QA = Task(
    name="qa",
    title="question answering",
    about="The first token of the answer to a question about a passage, against that of another answer.",
    sources=(SQUAD, DEMO),
    predicts="the first token of the answer",
    answer=True,
    words="first_difference",
    evidence="source",
    evidence_about=(
        "the answer's span in the context, and no other occurrence of its text (`meta.occurrences` counts them). The "
        "prompt is AttnLRP's (appendix B.1). The target is the first of the annotators' answers. The foil, which Close "
        "Look does not state, is the answer of another question of the same paragraph, else of the article, that "
        "begins differently: the next one in published order."
    ),
    scope="context",
    figure="Figure 5",
    published=(40_000, 200),
    share={"masked": "1", "causal": "1"},
)
