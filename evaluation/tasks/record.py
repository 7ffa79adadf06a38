"""The record of a task: everything that the product says about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from evaluation.benchmark.samples import Beginning, Words
from evaluation.benchmark.sources.base import AnySource, Source

#: What is looked for in every sample, or in each what its `meta.evidence` says.
EvidenceKind = Literal["source", "subject", "antecedent", "noun", "sample"]
Output = Literal["token", "label", "score"]  # what a model's head puts out
#: Of an answer the sum of its tokens' logits, and its log-probability: there is no other answer to contrast it with.
ANSWERS = ("target", "log_prob")
NO_EVIDENCE = "none: nobody marked the words that decide. The task is for perturbation alone."


@dataclass(frozen=True)
class Task:
    """A task of the benchmark: its predictions, the sources of its samples, and its evidence.

    >>> task = Task("colours", title="names of colours", about="The colour of a named thing.", predicts="the colour")
    >>> task.explains_answers, task.evidence
    (False, 'source')
    """

    name: str
    title: str  # in words: "subject-verb agreement"
    about: str = ""  # one sentence or two, for the dataset card and `closelook tasks`
    sources: tuple[AnySource, ...] = ()  # that can feed it beside the users' own files; the paper's comes first
    predicts: str = "the target"  # "the verb form"
    output: Output = "token"
    labels: tuple[str, ...] = ()  # where that is a label: their names, which a model's must have among them
    pair: bool = False  # a sample is two texts
    image: bool = False  # a sample is a picture, not a text
    answer: bool = False  # target and foil are whole answers: of several words, a masked model predicts the first
    #: Or "first_difference": a causal model may be asked for words of several tokens. Or "all": targets are answers of
    #: any length, all of whose tokens are explained together, by the sources in the prompt.
    words: Words = "single"
    beginning: Beginning | None = None  # of texts without a slot, label or score: how much of a text is read
    evidence: EvidenceKind | None = "source"  # what an annotator finds where the source brings none
    evidence_about: str = ""  # how it is found, for the dataset card
    scope: str | None = None  # what the scope is in words: the part of the text in which metrics look by default
    parts: str | None = None  # the name in `meta` of what tells the parts of the task apart, which the audit shows
    metrics: tuple[str, ...] | None = None  # None: all that apply
    figure: str = ""  # of its pruning curves in Close Look: "Figure 4"
    main_figure: str = ""  # the same in the main text
    published: tuple[int, int] = (0, 0)  # samples and mean tokens of the published data, to estimate costs
    #: Share of evidence, percent, that Close Look's table 1 implies by model kind: the per-token accuracy of a method
    #: whose relevance is positive everywhere.
    share: Mapping[str, str] = field(default_factory=dict)

    @property
    def explains_answers(self) -> bool:
        """True where whole answers are explained, by the sources in their prompts."""
        return self.words == "all"

    @property
    def explained(self) -> tuple[str, ...] | None:
        """The explanations of its samples, in place of the run's; None: the run's."""
        return ANSWERS if self.explains_answers else None

    def is_published(self, source: str) -> bool:
        """True where `source` is the published data of the paper, so that the paper's numbers are for these samples."""
        return bool(self.sources) and self.sources[0].name == source and isinstance(self.sources[0], Source)
