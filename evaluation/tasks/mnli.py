"""Natural language inference (NormXLogit 4)."""

from evaluation.benchmark.sources.glue import MNLI as SOURCE
from evaluation.benchmark.sources.glue import MNLI_LABELS
from evaluation.tasks.record import NO_EVIDENCE, Task

MNLI = Task(
    name="mnli",
    title="natural language inference",
    about="Whether a premise entails a hypothesis, contradicts it, or neither.",
    sources=(SOURCE,),
    predicts="the relation of premise and hypothesis",
    output="label",
    labels=MNLI_LABELS,
    pair=True,
    evidence=None,
    evidence_about=NO_EVIDENCE,
    published=(9832, 39),
)
