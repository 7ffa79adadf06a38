"""The sources of whole answers: from which passages of a prompt they come."""

from evaluation.benchmark.sources.generated import DEMO
from evaluation.benchmark.sources.generations import GENERATIONS
from evaluation.benchmark.sources.passages import SQUAD_PASSAGES
from evaluation.tasks.record import Task

SOURCES_OF_ANSWERS = Task(
    name="sources",
    title="sources of answers",
    about="Which passages of a prompt an answer comes from; the whole answer is explained.",
    sources=(SQUAD_PASSAGES, DEMO, GENERATIONS),
    predicts="the answer",
    words="all",
    evidence="source",
    evidence_about=(
        "the passages that an answer comes from: of SQuAD the paragraph that a question is about, among others of its "
        "article in which its answer does not occur; of the demo language the passages about the persons of the "
        "question. Logged generations have none."
    ),
    published=(1000, 700),
)
