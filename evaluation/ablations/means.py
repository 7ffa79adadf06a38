"""Means over samples of the measures by which methods' sources of answers are judged, with intervals and tests.

Shapes: N samples, V variants.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from closelook.evaluation.ablations.masks import DROPPED
from closelook.evaluation.scoring.faithfulness.scores import Summary, paired, summarise
from closelook.evaluation.scoring.intervals import Bounds, Clusters, Resampling, cluster_numbers
from closelook.evaluation.scoring.metrics import METRICS, UNITS, shown
from closelook.evaluation.scoring.statistics import Comparison

Row = Mapping[str, Any]  # of the schema of sources


class Variant(NamedTuple):
    """A method's relevance for one explanation; its own, a screened one, or that of a smaller budget."""

    method: str
    explanation: str
    screened: int = 0  # number of top units whose relevance leave-one-out replaces; 0: not screened
    budget: int = 0  # masks that the method was fitted to; 0: as many as it asks for


Measured = tuple[Variant, str]  # a variant, and the name of a measure
Setting = tuple[str, str, str]  # model, task, way to ablate


@dataclass(frozen=True)
class Measure:
    """A measure of how good a method's relevance of a sample's sources is."""

    name: str
    group: str  # heading in tables: what the measure is taken against
    label: str
    higher_is_better: bool = True
    scale: float = 1.0
    unit: str = ""
    bounds: Bounds = None


LEAD = "lds_l"  # the measure that is shown where only one can be
AGAINST = {"l": "against log p", "f": "against logits", "y": "log-odds"}
EVIDENCE = "evidence"


def _of_worths() -> Iterable[Measure]:
    """The measures against L, F and y: LDS and infidelity, and drops for each number of removed units."""
    for name in ("l", "f"):
        yield Measure(f"lds_{name}", AGAINST[name], "LDS", bounds=(-1.0, 1.0))
        yield Measure(f"infidelity_{name}", AGAINST[name], "infidelity", higher_is_better=False, bounds=(0.0, 1.0))
        for gone in DROPPED:
            yield Measure(f"drop_{name}_{gone}", AGAINST[name], f"drop {gone}")
    for gone in DROPPED:
        yield Measure(f"drop_y_{gone}", AGAINST["y"], f"drop {gone}")


def _of_evidence() -> Iterable[Measure]:
    """The metrics of evidence that are shown for units."""
    for name in shown(UNITS):
        metric = METRICS[name]
        yield Measure(name, EVIDENCE, metric.label, True, metric.scale, metric.unit, (0.0, 1.0))


MEASURES = {measure.name: measure for measure in (*_of_worths(), *_of_evidence())}


@dataclass(frozen=True)
class Judgement:
    """The measures of all variants for one model, task and way to ablate."""

    model: str
    task: str
    way: str  # how sources are ablated
    prompts: Mapping[Variant, float]  # mean number of ablated prompts that a sample takes
    summaries: Mapping[Measured, Summary]  # by variant and name of the measure
    comparisons: Mapping[str, Comparison]  # of `variants`, by name of the measure, in its unit
    samples: int
    #: The measure LEAD of variants, those of smaller budgets and screened ones included, on common samples.
    alike: Mapping[Variant, Summary]

    @property
    def variants(self) -> list[Variant]:
        """The methods' own variants: neither screened nor of a smaller budget."""
        return _own(self.prompts)

    def left_out(self, measure: str) -> int:
        """The largest number of samples for which a variant of `variants` lacks the measure."""
        return max((self.summaries[variant, measure].left_out for variant in self.variants), default=0)


def key_of(variant: Variant) -> str:
    """The name of a method's own variant in comparisons."""
    return f"{variant.method}|{variant.explanation}"


def judgement_of(
    setting: Setting,
    rows: Mapping[str, Sequence[Row]],
    resampling: Resampling,
    clusters: Clusters,
) -> Judgement:
    """The judgement of a `setting` (model, task, way), from `rows` of the schema of sources by method.

    `clusters` maps samples that share a cluster to its name.
    """
    values: dict[Measured, dict[str, float]] = {}  # by sample
    prompts: dict[Variant, list[float]] = {}
    samples: set[str] = set()
    for method, method_rows in rows.items():
        for row in method_rows:
            samples.add(row["sample_id"])
            variant = _variant(method, row)
            prompts.setdefault(variant, []).append(row["ablated"])
            for name, value in _numbers(row):
                values.setdefault((variant, name), {})[row["sample_id"]] = value
    for variant in prompts:
        for name in MEASURES:
            values.setdefault((variant, name), {})
    counts = {variant: float(np.mean(of_variant)) for variant, of_variant in prompts.items()}
    ids = sorted(samples)
    drawn, columns, summaries = resampling.within(cluster_numbers(clusters, ids)), {}, {}
    for (variant, name), by_sample in values.items():
        columns[variant, name] = np.array([by_sample.get(sample, np.nan) for sample in ids])
        summaries[variant, name] = summarise(columns[variant, name], drawn, MEASURES[name].bounds)
    variants, comparisons = _own(counts), {}
    for name in MEASURES:
        stacked = np.stack([MEASURES[name].scale * columns[variant, name] for variant in variants], axis=1)  # [N, V]
        compared = paired(stacked[..., None], tuple(map(key_of, variants)), (name,), drawn)
        if compared is not None:
            comparisons[name] = compared
    leading = {variant: columns[variant, LEAD] for variant in counts}
    alike = _alike(leading, drawn)
    return Judgement(*setting, counts, summaries, comparisons, len(ids), alike)


def _own(variants: Iterable[Variant]) -> list[Variant]:
    """The methods' own variants: neither screened nor of a smaller budget."""
    return [variant for variant in variants if not variant.screened and not variant.budget]


def _variant(method: str, row: Row) -> Variant:
    """The variant of a method's row."""
    if row["screened"]:
        return Variant(method, row["explanation"], screened=row["ablated"] - 1)
    budget = 0 if row["drop_l"] else row["ablated"]  # only a method's own claim has drops
    return Variant(method, row["explanation"], budget=budget)


def _numbers(row: Row) -> Iterable[tuple[str, float]]:
    """(name, value) of every measure that the row has a value of; drops are lists in the order of DROPPED."""
    for name in MEASURES:
        stem, _, count = name.rpartition("_")
        if stem.startswith("drop_"):
            drops = row[stem]
            at = DROPPED.index(int(count))
            if at < len(drops):
                yield name, drops[at]
        elif row[name] is not None:
            yield name, row[name]


def _alike(columns: Mapping[Variant, np.ndarray], resampling: Resampling) -> dict[Variant, Summary]:
    """The mean of LEAD, on common samples, of each variant that has it for all of these."""
    common = np.all([np.isfinite(values) for variant, values in columns.items() if not variant.screened], axis=0)
    drawn, bounds = resampling.among(common), MEASURES[LEAD].bounds
    alike = {}
    for variant, values in columns.items():
        if np.isfinite(values[common]).all():
            alike[variant] = summarise(values[common], drawn, bounds)
    return alike
