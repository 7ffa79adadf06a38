"""The class of an image (AttnLRP 4.1)."""

from evaluation.benchmark.sources.pictures import IMAGE_FOLDER, MNIST
from evaluation.tasks.record import Task

IMAGES = Task(
    name="images",
    title="images",
    about="The class that a model gives an image.",
    sources=(IMAGE_FOLDER, MNIST),
    predicts="the class",
    output="label",
    image=True,
    evidence=None,
    evidence_about="none: the task is for perturbation alone. AttnLRP flips pixels of 3,200 images of ImageNet.",
    published=(3200, 197),
)
