"""The block `neurons:`: relevance of neurons, their ablation, and their max-activating examples in a corpus."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from closelook.evaluation.benchmark.corpus import LENGTH
from closelook.jobs.config.base import AtLeast1, Explanation, Frozen, Names, PartOfRun, Some
from closelook.jobs.config.models import Name

MOST = 50  # neurons that are stored for each sample, the most relevant ones
NeuronCount = Annotated[int, Field(ge=1, le=MOST)]


class KnockoutConfig(PartOfRun):
    """Ablation of neurons: the explained number without the n most relevant neurons of each method."""

    tasks: Names | None = None
    """tasks with ablations, of those in `neurons.tasks`; null: all"""
    models: Names | None = None
    """models whose neurons are ablated, by name; null: all"""
    methods: Names | None = None
    """methods by whose relevance neurons are ranked; null: all with relevance of neurons"""
    explanation: Explanation | None = None
    """explanation by which all methods rank neurons; null: the first that every sample has"""
    counts: Some[NeuronCount] = (1, 2, 5, 10, 20, 50)
    """How many of the most relevant neurons are ablated; each number is a point of the curve."""


class CorpusConfig(PartOfRun):
    """The corpus in which each neuron's max-activating examples are searched (AttnLRP 4.3)."""

    name: Name = "corpus"
    """name of the corpus in folders and tables"""
    source: str
    """source of the texts: text (one text a line), samples (a column of a table), wikitext, squad, ..."""
    path: str | None = None
    """a file, a folder or a pattern of files in the published layout, or its URL, as for tasks"""
    hub: str | None = None
    """data set on the hub, which is read if `path` is not given"""
    subset: str | None = None
    """subset of the data set on the hub; null: the published one"""
    split: str | None = None
    """split of the data set on the hub; null: the published one"""
    revision: str | None = None
    """revision of the data set on the hub"""
    sha256: str | None = None
    """sha256 that the files at `path` must have"""
    column: str = "text"
    """column with the texts, in tables and data sets"""
    limit: AtLeast1 | None = None
    """number of texts, the first ones; for the demo source, how many to generate"""
    tokens: int = Field(default=LENGTH, ge=8)
    """tokens of a passage; longer texts are cut into several passages"""
    top: int = Field(default=10, ge=1, le=1000)
    """max-activating examples that are stored for each neuron"""
    models: Names | None = None
    """models that read the corpus, by name; null: all that read texts and whose family describes its neurons"""
    explain: str | None = "attnlrp"
    """Gradient method that explains the max-activating examples of neurons; null: none."""
    ranks: NeuronCount = 10
    """How many neurons of a sample, the most relevant by each method, have their examples explained."""


class NeuronsConfig(Frozen):
    """Neurons of feed-forward layers, at the first precision of each model and task (AttnLRP 3.4 and 4.3)."""

    tasks: dict[str, int | None] = Field(default_factory=dict)
    """task -> number of samples with relevance of neurons, drawn at random, the same for all methods; null: all"""
    knockout: KnockoutConfig | None = KnockoutConfig()
    """ablation of neurons; null: none"""
    corpus: CorpusConfig | None = None
    """corpus of max-activating examples; null: none are searched"""
