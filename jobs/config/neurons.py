"""The `neurons:` block: relevance of neurons, their ablation, and the texts in which they are most active."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from evaluation.benchmark.contexts import LENGTH
from jobs.config.base import AtLeast1, Explanation, Frozen, Names, PartOfRun
from jobs.config.models import Name

MOST = 50  # neurons of a sample that are kept
NeuronCount = Annotated[int, Field(ge=1, le=MOST)]


class KnockoutConfig(PartOfRun):
    """Knock-outs: the explained number without the first n neurons of each ranking."""

    tasks: Names | None = None
    """of those whose neurons are kept; null: all"""
    models: Names | None = None
    """by name; null: all"""
    methods: Names | None = None
    """whose rankings; null: all that are kept"""
    explanation: Explanation | None = None
    """null: the first that is computed"""
    value: Literal["zero", "mean"] = "zero"
    """What stands in place of a neuron that goes; mean: its own over the tokens of the corpus."""
    counts: tuple[NeuronCount, ...] = Field(default=(1, 2, 5, 10, 20, 50), min_length=1)
    """How many of the first neurons go, a point of the curve each."""


class CorpusConfig(PartOfRun):
    """Texts in which the contexts are looked for in which each neuron is most active (AttnLRP 4.3)."""

    name: Name = "corpus"
    """what folders and tables call it"""
    source: str
    """of the texts: text (a text a line), samples (a column of a table), wikitext, squad, ..."""
    path: str | None = None
    """a file, a folder or a pattern of files in the published layout; or its URL, as of tasks"""
    hub: str | None = None
    """a data set on the hub, when `path` is not given"""
    subset: str | None = None
    """of the data set on the hub; null: the published one"""
    split: str | None = None
    """likewise"""
    revision: str | None = None
    """of the data set on the hub"""
    sha256: str | None = None
    """of the files at `path`"""
    column: str = "text"
    """of tables and data sets, where the texts are"""
    limit: AtLeast1 | None = None
    """texts, the first; for the demo source, how many to generate"""
    tokens: int = Field(default=LENGTH, ge=8)
    """of a context; longer texts are several"""
    top: int = Field(default=10, ge=1, le=1000)
    """contexts of a neuron that are kept"""
    models: Names | None = None
    """by name; null: all that read texts and whose neurons are described"""
    explain: str | None = "attnlrp"
    """The gradient method by which the first contexts of neurons are explained; null: none."""
    ranks: NeuronCount = 10
    """How many of a sample's neurons, the first of each method that keeps them, have their contexts explained."""


class NeuronsConfig(Frozen):
    """Neurons of feed-forward layers, at the first precision of each model and task (AttnLRP 3.4 and 4.3)."""

    tasks: dict[str, int | None] = Field(default_factory=dict)
    """task -> samples, drawn at random, the same for all methods; null: every sample"""
    knockout: KnockoutConfig | None = KnockoutConfig()
    """null: none"""
    corpus: CorpusConfig | None = None
    """null: it is not looked for what neurons answer to"""

    @model_validator(mode="after")
    def _means(self) -> NeuronsConfig:
        if self.knockout is not None and self.knockout.value == "mean" and self.corpus is None:
            raise ValueError("knockout.value: the mean of a neuron is that over a corpus: set `neurons.corpus`")
        return self
