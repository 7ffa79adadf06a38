"""The next word of an article (AttnLRP 4.1)."""

from evaluation.benchmark.samples import Beginning
from evaluation.benchmark.sources.generated import DEMO
from evaluation.benchmark.sources.text import TEXT
from evaluation.benchmark.sources.wikitext import WIKIPEDIA, WIKITEXT
from evaluation.tasks.record import Task

NEXT_WORD = Task(
    name="next_word",
    title="next word",
    about="The token that a model predicts after the beginning of an article.",
    sources=(WIKIPEDIA, WIKITEXT, TEXT, DEMO),
    predicts="the next token",
    beginning=Beginning(512, "prediction"),
    evidence=None,
    evidence_about=(
        "none: the task is for perturbation alone. The first 512 tokens of an article are read. AttnLRP does not say "
        "which token it explains; here it is the model's own prediction, or with `explains: true` the one that follows."
    ),
    published=(4000, 512),
)
