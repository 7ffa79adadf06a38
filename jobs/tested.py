"""The statistical tests between the methods of a run, as tables: means with intervals, differences with p, groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import pyarrow as pa

from closelook.evaluation.report.results import CellKey
from closelook.evaluation.scoring.faithfulness.scores import MEASURES
from closelook.evaluation.scoring.metrics import METRICS
from closelook.evaluation.scoring.samples import VARIANT
from closelook.evaluation.scoring.statistics import Comparison
from closelook.jobs.config import RunConfig
from closelook.jobs.plan.cells import make_plan
from closelook.jobs.plan.node import Run
from closelook.jobs.stages.report.reported import Reported
from closelook.jobs.stages.report.results import results_of
from closelook.jobs.store import Ledger, Store

Row = dict[str, Any]  # of one of the tables
KEY = ("model", "task", "dtype", "method", *VARIANT, "metric")  # columns that identify a score
_TEXT, _NUMBER, _COUNT = pa.string(), pa.float64(), pa.int64()
_PLACE = dict.fromkeys(("model", "task", "dtype", "way", "explained"), _TEXT)
_ENDS = dict.fromkeys(("low", "high"), _NUMBER)  # of the 95 % interval
MEANS = pa.schema(
    {
        **_PLACE,
        **dict.fromkeys(("metric", "method", "explanation", "embedding"), _TEXT),
        "group": _COUNT,
        "value": _NUMBER,
        **_ENDS,
        "n": _COUNT,
    }
)
DIFFERENCES = pa.schema(
    {
        **_PLACE,
        **dict.fromkeys(("metric", "method", "other"), _TEXT),
        "difference": _NUMBER,
        **_ENDS,
        "p": _NUMBER,
        "smallest": _NUMBER,
        "n": _COUNT,
    }
)
GROUPS = pa.schema({**_PLACE, "metric": _TEXT, "group": _COUNT, "methods": pa.list_(_TEXT), "n": _COUNT})


@dataclass(frozen=True)
class Tested:
    """The comparison of methods for a model and task, by metrics of evidence or by areas of curves."""

    model: str
    task: str
    dtype: str
    way: str  # in which curves remove tokens; empty for metrics of evidence
    explained: str  # the number that curves follow; empty for metrics of evidence
    comparison: Comparison
    higher_is_better: Mapping[str, bool]  # by metric
    variants: Mapping[str, Sequence[str]]  # by method: explanation, embedding, and for evidence also tokens and scope
    by_chance: Sequence[str] = ()  # methods that are compared by their expected score instead of their drawn relevance

    @property
    def place(self) -> dict[str, str]:
        """Model, task, precision, way and explained number, as columns of the tables."""
        return {name: getattr(self, name) for name in _PLACE}

    def groups(self, metric: str) -> list[tuple[str, ...]]:
        """The methods in groups, the best first: none is shown to be better than one of its group or a group before."""
        return self.comparison.groups(metric, self.higher_is_better[metric])


def tested(config: RunConfig, store: Store) -> list[Tested]:
    """All comparisons that the report of the run would show, of the artifacts that are complete."""
    run = Run(config, make_plan(config, store), Ledger(store))
    results = results_of(run)
    tests = []
    for (model, task, dtype), comparison in results.comparisons.items():
        better = {name: METRICS[name].higher_is_better for name in comparison.metrics}
        variants = {method: results.defaults[CellKey(model, task, dtype, method)] for method in comparison.methods}
        by_chance = [results.baseline] if (model, task) in results.floors and results.baseline else []
        tests.append(Tested(model, task, dtype, "", "", comparison, better, variants, by_chance))
    for drawn in Reported(run, results).drawn:
        of_areas = drawn.areas.comparison
        if of_areas is not None:
            better = {name: MEASURES[name].higher_is_better for name in of_areas.metrics}
            setting = (drawn.model, drawn.task, drawn.dtype, drawn.perturbation, drawn.score)
            tests.append(Tested(*setting, of_areas, better, drawn.areas.variants))
    return tests


def means(every: Iterable[Tested]) -> pa.Table:
    """Schema MEANS: for each metric and method, the mean over the samples that all methods explain, interval, group."""
    return _table(every, _means, MEANS)


def _table(every: Iterable[Tested], rows_of: Callable[[Tested, str], Iterator[Row]], schema: pa.Schema) -> pa.Table:
    """The rows that `rows_of` yields for each comparison and metric, as a table."""
    rows = [row for test in every for metric in test.comparison.metrics for row in rows_of(test, metric)]
    return pa.Table.from_pylist(rows, schema)


def _means(test: Tested, metric: str) -> Iterator[Row]:
    """The rows of `means` for one comparison and metric."""
    comparison, k = test.comparison, test.comparison.metrics.index(metric)
    for number, group in enumerate(test.groups(metric), start=1):
        for method in group:
            at = comparison.methods.index(method), k
            explanation, embedding, *_ = test.variants[method]
            variant = {"method": method, "explanation": explanation, "embedding": embedding}
            mean = {"value": comparison.mean[at], "low": comparison.low[at], "high": comparison.high[at]}
            yield {**test.place, "metric": metric, **variant, "group": number, **mean, "n": comparison.n}


def of_scores(every: Iterable[Tested]) -> dict[tuple[str, ...], Row]:
    """The rows of `means` about evidence, by the values of KEY of their score. Methods by chance are left out."""
    rows = {}
    for test in every:
        for metric in test.comparison.metrics if not test.way else ():
            for row in _means(test, metric):
                method = row["method"]
                if method not in test.by_chance:
                    rows[(test.model, test.task, test.dtype, method, *test.variants[method], metric)] = row
    return rows


def differences(every: Iterable[Tested]) -> pa.Table:
    """Schema DIFFERENCES: for each metric and pair of methods, the first's mean minus the other's, interval, p.

    `smallest` is the smallest difference that these samples would detect with a probability of 80 %.
    """
    return _table(every, _differences, DIFFERENCES)


def _differences(test: Tested, metric: str) -> Iterator[Row]:
    """The rows of `differences` for one comparison and metric."""
    comparison, k = test.comparison, test.comparison.metrics.index(metric)
    smallest = None if comparison.smallest is None else comparison.smallest[k]
    for at, other in combinations(range(len(comparison.methods)), 2):
        cell = at, other, k
        pair = {"method": comparison.methods[at], "other": comparison.methods[other]}
        difference = comparison.mean[at, k] - comparison.mean[other, k]
        ends = {"low": comparison.difference_low[cell], "high": comparison.difference_high[cell]}
        power = {"p": comparison.p[cell], "smallest": smallest, "n": comparison.n}
        yield {**test.place, "metric": metric, **pair, "difference": difference, **ends, **power}


def groups(every: Iterable[Tested]) -> pa.Table:
    """Schema GROUPS: a row for each metric and group of methods, the best first.

    The method of a first group of one is the only one that no other method is shown to beat.
    """
    return _table(every, _groups, GROUPS)


def _groups(test: Tested, metric: str) -> Iterator[Row]:
    """The rows of `groups` for one comparison and metric."""
    for number, methods in enumerate(test.groups(metric), start=1):
        in_group = {"group": number, "methods": list(methods), "n": test.comparison.n}
        yield {**test.place, "metric": metric, **in_group}
