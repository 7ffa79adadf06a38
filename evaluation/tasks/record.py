"""The record of a task: its texts for pages, its sources, and how its samples are read and scored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from closelook.evaluation.benchmark.samples import Beginning, Words
from closelook.evaluation.benchmark.sources.base import AnySource, Source

#: The kind of word that an annotator looks for; "sample": the kind that `meta.evidence` of each sample names.
Finds = Literal["subject", "antecedent", "noun", "sample"]
EvidenceKind = Literal["source"] | Finds  # where evidence comes from: the samples' source, or an annotator
Output = Literal["token", "label", "score"]  # what a model's head puts out
#: The explanations of whole answers: the sum of the tokens' logits, and the log-probability. There is no contrastive
#: explanation, since there is no other answer to compare with.
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
    sources: tuple[AnySource, ...] = ()  # of its samples, besides users' own files; the paper's comes first
    predicts: str = "the target"  # "the verb form"
    output: Output = "token"
    labels: tuple[str, ...] = ()  # for the output "label": the names of labels, all of which a model must have
    pair: bool = False  # a sample is two texts
    image: bool = False  # a sample is a picture, not a text
    answer: bool = False  # target and foil may have several words, of which a masked model predicts the first
    #: "single": target and foil are one token each. "first_difference": they may have several, and the first in which
    #: they differ are explained. "all": targets are answers of any length, explained by the sources in the prompt.
    words: Words = "single"
    beginning: Beginning | None = None  # how much is read of texts without a slot, label or score
    evidence: EvidenceKind | None = "source"  # None: samples have none
    evidence_about: str = ""  # how it is found, for the dataset card
    scope: str | None = None  # name of the part of the text that metrics use by default; None: the whole text
    parts: str | None = None  # field of `meta` that names a sample's part of the task, for the audit
    metrics: tuple[str, ...] | None = None  # None: all that apply
    figure: str = ""  # of its pruning curves in Close Look: "Figure 4"
    main_figure: str = ""  # the same in the main text
    #: Share of evidence, percent, that Close Look's table 1 implies by model kind: the per-token accuracy of a method
    #: whose relevance is positive everywhere.
    share: Mapping[str, str] = field(default_factory=dict)

    @property
    def explains_answers(self) -> bool:
        """True where whole answers are explained, by the sources in their prompts."""
        return self.words == "all"

    @property
    def explained(self) -> tuple[str, ...] | None:
        """The explanations of the task's samples; None: those of the run."""
        return ANSWERS if self.explains_answers else None

    def is_published(self, source: str) -> bool:
        """True if `source` is the data of the paper, so that the paper's numbers are for these samples."""
        return bool(self.sources) and self.sources[0].name == source and isinstance(self.sources[0], Source)
