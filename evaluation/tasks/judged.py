"""Classes and scores of whole texts: of GLUE (NormXLogit 4), and of reviews (AttnLRP 4.1)."""

from functools import partial

from evaluation.benchmark.sources import glue, imdb
from evaluation.tasks.record import NO_EVIDENCE, Task

_judged = partial(Task, output="label", evidence=None, evidence_about=NO_EVIDENCE)

SST2 = _judged(
    name="sst2",
    title="sentiment of sentences",
    about="Whether a sentence of a film review is negative or positive.",
    sources=(glue.SST2,),
    predicts="the sentiment",
    labels=glue.SST2_LABELS,
    published=(872, 25),
)
MNLI = _judged(
    name="mnli",
    title="natural language inference",
    about="Whether a premise entails a hypothesis, contradicts it, or neither.",
    sources=(glue.MNLI,),
    predicts="the relation of premise and hypothesis",
    labels=glue.MNLI_LABELS,
    pair=True,
    published=(9832, 39),
)
QNLI = _judged(
    name="qnli",
    title="question and answer inference",
    about="Whether a sentence of Wikipedia holds the answer to a question.",
    sources=(glue.QNLI,),
    predicts="whether the sentence answers the question",
    labels=glue.QNLI_LABELS,
    pair=True,
    published=(5463, 51),
)
STSB = _judged(
    name="stsb",
    title="similarity of sentences",
    about="How alike in meaning two sentences are, from 0 to 5.",
    sources=(glue.STSB,),
    predicts="the score",
    output="score",
    pair=True,
    published=(1500, 31),
)
IMDB = _judged(
    name="imdb",
    title="sentiment of reviews",
    about="Whether a review of a film is negative or positive.",
    sources=(imdb.IMDB,),
    predicts="the sentiment",
    labels=imdb.LABELS,
    published=(25_000, 300),
)
