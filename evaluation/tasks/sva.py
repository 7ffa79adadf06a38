"""Subject-verb agreement (Close Look 4.1)."""

from evaluation.benchmark.sources.generated import DEMO
from evaluation.benchmark.sources.lgd import LGD
from evaluation.tasks.record import Task

SVA = Task(
    name="sva",
    title="subject-verb agreement",
    about="The form of a verb that agrees with its subject, against the form of the other number.",
    sources=(LGD, DEMO),
    predicts="the verb form",
    evidence="subject",
    evidence_about=(
        "the head token of the verb's subject, by a dependency parse of the full sentence, through auxiliaries, "
        "copulas, passives, conjoined verbs and inversion; a relative pronoun stands for its antecedent, existential "
        "*there* for what there is. Where the parse has no subject, or contradicts itself, the sentence is left out: "
        "never a guess."
    ),
    figure="Figure 4",
    main_figure="Figure 2",
    published=(30_000, 30),
    share={"masked": "5", "causal": "15"},
)
