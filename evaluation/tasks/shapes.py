"""Generated images of two classes that differ by one shape."""

from evaluation.benchmark.demo.lexicon import SHAPES as LABELS
from evaluation.benchmark.sources.generated import DEMO
from evaluation.tasks.record import Task

SHAPES = Task(
    name="shapes",
    title="shapes",
    about="Which of two shapes is among the others on a small generated image.",
    sources=(DEMO,),
    predicts="the shape that decides",
    output="label",
    labels=LABELS,
    image=True,
    evidence="source",
    evidence_about="the patches that share a pixel with the shape that decides; the other shapes are in both classes.",
    published=(1000, 37),
)
