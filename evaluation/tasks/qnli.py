"""Questions and sentences that answer them or not (NormXLogit 4)."""

from evaluation.benchmark.sources.glue import QNLI as SOURCE
from evaluation.benchmark.sources.glue import QNLI_LABELS
from evaluation.tasks.record import NO_EVIDENCE, Task

QNLI = Task(
    name="qnli",
    title="question and answer inference",
    about="Whether a sentence of Wikipedia holds the answer to a question.",
    sources=(SOURCE,),
    predicts="whether the sentence answers the question",
    output="label",
    labels=QNLI_LABELS,
    pair=True,
    evidence=None,
    evidence_about=NO_EVIDENCE,
    published=(5463, 51),
)
