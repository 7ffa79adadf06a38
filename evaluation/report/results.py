"""Results of a report: scores by variant, states of planned cells, comparisons, and Close Look's numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evaluation.report.papers import close_look
from evaluation.report.table import NOISE, UNDEFINED
from evaluation.scoring.chance import Floor
from evaluation.scoring.intervals import numbered
from evaluation.scoring.metrics import applicable
from evaluation.scoring.statistics import Comparison
from evaluation.tasks import Task
from lrp_core.method import LAST, Method

Methods = Mapping[str, Method]  # records by name; passes and orders that are shown beside methods have none


def label(methods: Methods, name: str) -> str:
    return methods[name].label if name in methods else name


def rank(methods: Methods, name: str) -> tuple[int, str]:
    """The key by which tables sort methods."""
    return (methods[name].order if name in methods else LAST, name)


class Place(NamedTuple):
    """A cell of the store, without its product."""

    model: str
    task: str
    dtype: str
    method: str


class Variant(NamedTuple):
    explanation: str
    embedding: str
    tokens: str
    scope: str


class Score(NamedTuple):
    value: float | None  # percent; None without correct samples
    n: int


class Size(NamedTuple):
    """The shape of a model, as table 9 of Close Look lists it."""

    parameters: int
    layers: int
    heads: int
    width: int


@dataclass(frozen=True)
class Results:
    """Everything the tables show. Cells that are not in `states` are not defined, as ALTI-Logit on BERT."""

    models: tuple[str, ...]
    tasks: Mapping[str, Task]  # in the order of the config, as are methods
    methods: Methods
    dtypes: Mapping[tuple[str, str], tuple[str, ...]]  # (model, task) -> precisions, the first is shown by default
    states: Mapping[Place, str]
    scores: Mapping[tuple[Place, Variant, str], Score]  # the last is the metric
    comparisons: Mapping[tuple[str, str, str], Comparison] = field(default_factory=dict)  # (model, task, dtype)
    published: Mapping[tuple[str, str], str] = field(default_factory=dict)  # (model, task) -> the model in Close Look
    sizes: Mapping[str, Size] = field(default_factory=dict)  # by model; not of models out of reach
    floors: Mapping[tuple[str, str], Floor] = field(default_factory=dict)  # (model, task) -> the chance of its samples
    #: The samples that chose a method's options, which no number of that method counts.
    tuned_on: Mapping[Place, frozenset[str]] = field(default_factory=dict)
    seeds: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # model -> those trained from other seeds
    clusters: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # by task: samples' clusters, of those with

    undefined: frozenset[tuple[str, str]] = frozenset()  # (model, method): the model lacks what the method needs

    def state(self, place: Place) -> str:
        return self.states.get(place, UNDEFINED)

    @property
    def scored(self) -> list[str]:
        """Tasks that some metric applies to: those with evidence, and where a metric needs none."""
        return [name for name, task in self.tasks.items() if applicable(task)]

    @cached_property
    def _variants(self) -> set[tuple[Place, Variant]]:
        return {(place, variant) for place, variant, _ in self.scores}

    @cached_property
    def defaults(self) -> Mapping[Place, Variant]:
        """Contrastive, full embeddings, no special tokens, context only where there is one (Close Look 5.1)."""
        variants: dict[Place, Variant] = {}
        for place, variant, metric in self.scores:
            if metric != "accuracy" and (
                place not in variants or variant_rank(variant) < variant_rank(variants[place])
            ):
                variants[place] = variant
        return variants

    def score(self, place: Place, metric: str, **changes: str) -> Score | None:
        """The score of the default variant with `changes`; None when the cell has no such variant."""
        if place not in self.defaults:
            return None
        return self.scores.get((place, self.defaults[place]._replace(**changes), metric))

    def clusters_of(self, task: str, samples: Sequence[str]) -> np.ndarray | None:
        """Numbers [N] of the samples' clusters; None where no two share one."""
        return numbered(self.clusters.get(task, {}), samples)

    def without_tuning(self, place: Place, table: pa.Table) -> pa.Table:
        """The rows of a table of samples of a method but for those that chose its options."""
        chose = self.tuned_on.get(place)
        if not chose:
            return table
        return table.filter(pc.invert(pc.is_in(table["sample_id"], pa.array(sorted(chose)))))

    def is_noise(self, place: Place, **changes: str) -> bool:
        """True where most samples of this variant have no relevance beyond rounding: their scores say nothing."""
        if place not in self.defaults:
            return False
        variant = self.defaults[place]._replace(**changes)._replace(tokens="all", scope="full")
        score = self.scores.get((place, variant, NOISE))
        return score is not None and score.value is not None and score.value > 50

    def offers(self, task: str, method: str, changes: Mapping[str, str]) -> bool:
        """True where some cell of this method and task has its default variant with `changes`."""
        return any(
            (place, variant._replace(**changes)) in self._variants
            for place, variant in self.defaults.items()
            if (place.task, place.method) == (task, method)
        )

    def reference(self, table: str, side: str, place: Place, metric: str) -> float | None:
        """Close Look's number for this cell, None where it has none or the model is not the same."""
        model = self.published.get((place.model, place.task))
        return None if model is None else close_look().get((table, side, place.task, model, place.method, metric))

    def groups(self) -> list[tuple[str, ...]]:
        """Columns of methods in the order of their records, then as configured; methods of one column share it."""
        columns: dict[str, list[str]] = {}
        for name, method in sorted(self.methods.items(), key=lambda item: item[1].order):
            columns.setdefault(method.column, []).append(name)
        return [tuple(names) for names in columns.values()]

    def ordered_methods(self) -> list[str]:
        return [method for group in self.groups() for method in group]

    def label(self, method: str) -> str:
        return label(self.methods, method)

    @cached_property
    def baseline(self) -> str | None:
        """The method that others are held against, if the run has one."""
        return next(iter(self.baselines), None)

    @property
    def baselines(self) -> list[str]:
        """Methods without an explanation, as random relevance, which no ranking counts."""
        return [name for name, method in self.methods.items() if method.family == "baseline"]

    def accuracy(self, model: str, task: str, dtype: str) -> Score | None:
        """The share of samples the model predicts correctly: the same whatever method wrote it down."""
        for method in self.methods:
            if (score := self.scores.get((Place(model, task, dtype, method), ACCURACY, "accuracy"))) is not None:
                return score
        return None


ACCURACY = Variant("none", "none", "all", "full")
_ORDER = (("contrastive", "target", "none"), ("full", "partial", "none"), ("non_special", "all"), ("context", "full"))


def variant_rank(variant: Variant) -> list[int]:
    return [order.index(part) for order, part in zip(_ORDER, variant, strict=True)]
