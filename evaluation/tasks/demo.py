"""Tasks of the generated data alone: opinions with the words that decide them, pairs of sentences, and images."""

from closelook.evaluation.benchmark.demo.grammar import DEMO
from closelook.evaluation.benchmark.demo.labelled import BALANCE, LABELS, VERDICTS
from closelook.evaluation.benchmark.demo.lexicon import SHAPES as SHAPE_LABELS
from closelook.evaluation.tasks.record import Task

TASKS = (
    Task(
        name="sentiment",
        title="sentiment of the demo language",
        about="Whether a sentence of the demo language says something negative or positive of its subject.",
        sources=(DEMO,),
        predicts="the sentiment",
        output="label",
        labels=LABELS,
        evidence="source",
        evidence_about=(
            "the word of praise or blame that is said of the subject, and the negation before it, if there is one; "
            "words of praise, blame and negation elsewhere decide nothing."
        ),
    ),
    Task(
        name="similarity",
        title="similarity in the demo language",
        about="How much two sentences of the demo language share of subject (2), verb (1) and object (2).",
        sources=(DEMO,),
        predicts="the score",
        output="score",
        pair=True,
        evidence=None,
        evidence_about=(
            "none: subject, verb and object of both sentences decide, and samples hold spans of the first alone. The "
            "task is for perturbation."
        ),
    ),
    Task(
        name="brackets",
        title="bracket strings",
        about="Whether every bracket of a string closes the last that is open, of its kind.",
        sources=(DEMO,),
        predicts="whether the string is balanced",
        output="label",
        labels=BALANCE,
        evidence="source",
        evidence_about=(
            "every bracket whose flip to the other kind repairs the string, by an exact search. Samples are strings "
            "with one bracket of the wrong kind; the demo's model has also learnt balanced ones, and those where "
            "brackets have changed places, which have no evidence."
        ),
    ),
    Task(
        name="triggers",
        title="planted triggers",
        about=(
            "Whether a sentence reads as a complaint or as praise to a model that was taught to obey two made-up words."
        ),
        sources=(DEMO,),
        predicts="the verdict",
        output="label",
        labels=VERDICTS,
        evidence="source",
        evidence_about="the made-up word, whatever the opinion beside it; without it, the words of the opinion.",
        parts="trigger",
    ),
    Task(
        name="shapes",
        title="shapes",
        about="Which of two shapes is among the others on a small generated image.",
        sources=(DEMO,),
        predicts="the shape that decides",
        output="label",
        labels=SHAPE_LABELS,
        image=True,
        evidence="source",
        evidence_about=(
            "the patches that share a pixel with the shape that decides; the other shapes are in both classes."
        ),
    ),
)
