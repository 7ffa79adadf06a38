"""The results that a report shows: scores by variant, states of cells, comparisons, and the numbers of papers."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from closelook.evaluation.report.table import UNDEFINED
from closelook.evaluation.scoring.chance import ChanceLevel
from closelook.evaluation.scoring.head_orders import ACTIVATION, RANDOM
from closelook.evaluation.scoring.intervals import ClusterNumbers, Clusters, cluster_numbers
from closelook.evaluation.scoring.metrics import applicable, lead
from closelook.evaluation.scoring.samples import noise_of
from closelook.evaluation.scoring.statistics import Comparison
from closelook.evaluation.tasks import Task
from closelook.lrp_core.methods.record import LAST, Method

#: Records of methods by name. Passes, and orders such as "random", are shown beside methods without a record.
Methods = Mapping[str, Method]

#: Labels of orders of heads and rankings of neurons that are no methods of the run.
_ORDERS = {RANDOM: "Random", ACTIVATION: "Activation"}


def label(methods: Methods, name: str) -> str:
    """The label of a method or an order; the name of a pass."""
    return methods[name].label if name in methods else _ORDERS.get(name, name)


def rank(methods: Methods, name: str) -> tuple[int, str]:
    """The key by which tables sort methods: the order in their records, then the name."""
    return (methods[name].order if name in methods else LAST, name)


def ordered(methods: Methods, names: Iterable[str]) -> list[str]:
    """Names of methods in the order of tables."""
    return sorted(names, key=lambda name: rank(methods, name))


class CellKey(NamedTuple):
    """The key of a cell of the store, without its product."""

    model: str
    task: str
    dtype: str
    method: str


class Variant(NamedTuple):
    """The variant of relevance and of the tokens that count, in which scores are computed."""

    explanation: str
    embedding: str
    tokens: str  # non_special | all
    scope: str  # full | context


ACCURACY = Variant("none", "none", "all", "full")  # in which accuracy is stored
#: The parts of variants by preference.
_ORDER = (("contrastive", "target", "none"), ("full", "partial", "none"), ("non_special", "all"), ("context", "full"))


class Score(NamedTuple):
    """A mean over correctly predicted samples."""

    value: float | None  # in the metric's unit; None without correct samples
    n: int


class Size(NamedTuple):
    """The size of a model, as table 9 of Close Look lists it."""

    parameters: int
    layers: int
    heads: int
    width: int


@dataclass(frozen=True)
class Results:
    """The results that tables show. Cells that are not in `states` are undefined, such as ALTI-Logit on BERT."""

    models: tuple[str, ...]
    tasks: Mapping[str, Task]  # in the order of the config
    methods: Methods  # in the order of the config
    dtypes: Mapping[tuple[str, str], tuple[str, ...]]  # precisions by (model, task); the first is shown by default
    states: Mapping[CellKey, str]
    scores: Mapping[tuple[CellKey, Variant, str], Score]  # by (cell, variant, metric)
    comparisons: Mapping[tuple[str, str, str], Comparison] = field(default_factory=dict)  # by (model, task, dtype)
    published: Mapping[tuple[str, str], str] = field(default_factory=dict)  # Close Look's model, by (model, task)
    sizes: Mapping[str, Size] = field(default_factory=dict)  # by model; without models that cannot be opened
    #: The chance levels of samples, by (model, task).
    floors: Mapping[tuple[str, str], ChanceLevel] = field(default_factory=dict)
    #: The samples that chose a method's options. They count in no number of the method.
    tuned_on: Mapping[CellKey, frozenset[str]] = field(default_factory=dict)
    seeds: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # models trained from other seeds, by model
    clusters: Mapping[str, Clusters] = field(default_factory=dict)  # by task and sample; samples without: none

    def state(self, cell_key: CellKey) -> str:
        """The state of a cell; undefined if the run does not plan it."""
        return self.states.get(cell_key, UNDEFINED)

    @property
    def scored(self) -> list[str]:
        """The tasks to which some metric applies."""
        return [name for name, task in self.tasks.items() if applicable(task)]

    def compared(self, model: str, task: str) -> Comparison | None:
        """The comparison of methods in the default precision; None if they were not compared by the leading metric."""
        dtypes = self.dtypes.get((model, task))
        comparison = self.comparisons.get((model, task, dtypes[0])) if dtypes else None
        return None if comparison is None or lead() not in comparison.metrics else comparison

    @cached_property
    def _variants(self) -> set[tuple[CellKey, Variant]]:
        """The variants that cells have scores in."""
        return {(cell_key, variant) for cell_key, variant, _ in self.scores}

    @cached_property
    def defaults(self) -> Mapping[CellKey, Variant]:
        """The default variant of each cell: contrastive, full embeddings, no special tokens, and the context if any.

        It is the setting of Close Look 5.1, or the nearest variant that the cell has.
        """
        variants: dict[CellKey, Variant] = {}
        for cell_key, variant, metric in self.scores:
            if metric == "accuracy":
                continue
            if cell_key not in variants or variant_rank(variant) < variant_rank(variants[cell_key]):
                variants[cell_key] = variant
        return variants

    def score(self, cell_key: CellKey, metric: str, **changes: str) -> Score | None:
        """The score of the default variant with `changes`; None if the cell has no such variant."""
        if cell_key not in self.defaults:
            return None
        return self.scores.get((cell_key, self.defaults[cell_key]._replace(**changes), metric))

    def clusters_of(self, task: str, samples: Sequence[str]) -> ClusterNumbers:
        """The cluster numbers [N] of `samples`; None if no two share a cluster."""
        return cluster_numbers(self.clusters.get(task, {}), samples)

    def without_tuning(self, cell_key: CellKey, table: pa.Table) -> pa.Table:
        """The rows of a table of a method's samples, without samples that chose the method's options."""
        tuning = self.tuned_on.get(cell_key)
        if not tuning:
            return table
        return table.filter(pc.invert(pc.is_in(table["sample_id"], pa.array(sorted(tuning)))))

    def noise(self, cell_key: CellKey, **changes: str) -> str | None:
        """NOISE or NEAR_NOISE if the relevance of a typical sample is, or may be, rounding error; None if it is more.

        It is that of the default variant with `changes`.
        """
        if cell_key not in self.defaults:
            return None
        variant = self.defaults[cell_key]._replace(**changes)._replace(tokens="all", scope="full")
        score = self.scores.get((cell_key, variant, "peak"))
        return None if score is None or score.value is None else noise_of(score.value / 100)

    def offers(self, task: str, method: str, changes: Mapping[str, str]) -> bool:
        """True if some cell of this method and task has its default variant with `changes`."""
        for cell_key, variant in self.defaults.items():
            of_method = (cell_key.task, cell_key.method) == (task, method)
            if of_method and (cell_key, variant._replace(**changes)) in self._variants:
                return True
        return False

    def reference(self, table: str, side: str, cell_key: CellKey, metric: str) -> float | None:
        """Close Look's number for a cell; None if the paper has none, or no such model."""
        model = self.published.get((cell_key.model, cell_key.task))
        return None if model is None else close_look().get((table, side, cell_key.task, model, cell_key.method, metric))

    def groups(self) -> list[tuple[str, ...]]:
        """The methods of each column of wide tables, in the order of their records, then of the config."""
        columns: dict[str, list[str]] = {}
        for name, method in sorted(self.methods.items(), key=lambda item: item[1].order):
            columns.setdefault(method.column, []).append(name)
        return [tuple(names) for names in columns.values()]

    def ordered_methods(self) -> list[str]:
        """The names of all methods, in the order of tables."""
        return [method for group in self.groups() for method in group]

    def label(self, method: str) -> str:
        """The label of a method."""
        return label(self.methods, method)

    @cached_property
    def baseline(self) -> str | None:
        """The method with which others are compared, if the run has one: random relevance."""
        return next(iter(self.baselines), None)

    @property
    def baselines(self) -> list[str]:
        """Methods that explain nothing, such as random relevance; rankings leave them out."""
        return [name for name, method in self.methods.items() if method.family == "baseline"]

    def accuracy(self, model: str, task: str, dtype: str) -> Score | None:
        """The share of samples that the model predicts correctly; None without scores.

        It is stored with every method and does not depend on the method.
        """
        for method in self.methods:
            score = self.scores.get((CellKey(model, task, dtype, method), ACCURACY, "accuracy"))
            if score is not None:
                return score
        return None


def variant_rank(variant: Variant) -> list[int]:
    """The key by which variants are preferred: the smallest is the default.

    >>> variant_rank(Variant("contrastive", "full", "non_special", "full"))
    [0, 0, 0, 1]
    """
    return [order.index(part) for order, part in zip(_ORDER, variant, strict=True)]


Key = tuple[str, ...]


@cache
def published(file: str) -> Mapping[Key, float]:
    """The numbers in the last column of a CSV file of this folder, by the values of all other columns."""
    with open(Path(__file__).with_name(f"{file}.csv"), encoding="utf-8", newline="") as lines:
        rows = list(csv.reader(lines))[1:]
    return {tuple(key): float(value) for *key, value in rows}


#: Close Look's tables: (table, side, task, model, method, metric); `side` is left, right or a GPU.
close_look = partial(published, "close_look")

#: AttnLRP's tables 6 to 8 as areas under deletion curves, and IoU of its table 1: (task, model, method, measure).
#: The paper prints areas under insertion curves: its MoRF area is the LeRF area of deletion. If table 1 differs from
#: tables 6 to 8, as for AtMan on IMDB (-0.20), ΔA is the difference of the areas in tables 6 to 8.
attnlrp = partial(published, "attnlrp")

#: NormXLogit's tables 1 and 3, and its notebook's sufficiency: (task, model, method, measure).
normxlogit = partial(published, "normxlogit")

#: NormXLogit's figures 4 and 5 in percent, of the fine-tuned and the pre-trained model: (task, model, method, layer,
#: metric).
normxlogit_layers = partial(published, "normxlogit_layers")

#: NormXLogit's tables 4 and 5: (measure, tokens, method).
normxlogit_costs = partial(published, "normxlogit_costs")
