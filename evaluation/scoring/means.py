"""Means of the scores of a cell (model, task, precision, method), whose relevance comes in parts, and scores by layer.

Parts are added up as sums, so that no row stays in memory. Means are over correctly predicted samples, in the unit of
the metric.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from closelook.evaluation.schema import LAYER_SCORES, LAYERS, layer_scores_samples_schema
from closelook.evaluation.scoring.metrics import METRICS, Metric
from closelook.evaluation.scoring.samples import VARIANT, Masks, peaks, predicted_right, score_relevance

_HELD = 256  # tables of sums that are kept before they are added up
_EXPLAINED = ["explanation", "embedding"]


@dataclass
class Means:
    """Sums of a cell's scores over the parts that `add` has seen."""

    masks: Masks
    metrics: Mapping[str, Metric] = field(default_factory=lambda: METRICS)
    defects: Counter[str] = field(default_factory=Counter)  # rows by defect, one for each variant of a sample
    _sums: list[pa.Table] = field(default_factory=list)
    _peaks: list[pa.Table] = field(default_factory=list)  # a row for each sample
    #: The explanation and the embedding that accuracy is counted in, so that each sample counts once.
    _counted: dict[str, str] = field(default_factory=dict)
    _right: int = 0
    _known: int = 0

    def add(self, relevance: pa.Table) -> pa.Table:
        """Adds a part of the cell's relevance and returns its scores, the table of `score_relevance`.

        Raises Mismatch for relevance that does not belong to the masks.
        """
        samples, defects = score_relevance(relevance, self.masks, self.metrics)
        self.defects.update(defects)
        self._sums = _merged_if_many([*self._sums, sums_of(samples, self.metrics)], VARIANT)
        self._peaks.append(_peaks_of(relevance))
        self._count_correct(relevance.combine_chunks())
        return samples

    def table(self) -> pa.Table:
        """Means as rows of VARIANT, metric, value (null without samples) and n, with accuracy and peak as metrics."""
        return pa.concat_tables([means_of(self._sums, self.metrics), self._accuracy(), self._median_peaks()])

    def _count_correct(self, relevance: pa.Table) -> None:
        """Counts the samples that the model predicts correctly, and all with a gold label or a foil.

        Only rows of the first explanation and embedding that were seen are counted, so that a sample counts once.
        """
        if len(relevance) and not self._counted:
            self._counted = {name: relevance[name][0].as_py() for name in _EXPLAINED}
        for name, value in self._counted.items():
            relevance = relevance.filter(pc.equal(relevance[name], value))
        right = pc.drop_null(predicted_right(relevance.combine_chunks(), self.masks))
        self._right += pc.sum(right, min_count=0).as_py()
        self._known += len(right)

    def _accuracy(self) -> pa.Table:
        """A row of the metric "accuracy": the percentage, of samples with a gold label or a foil, that are correct."""
        share = 100 * (self._right / self._known) if self._known else None
        row = {"explanation": "none", "embedding": "none", "tokens": "all", "scope": "full", "metric": "accuracy"}
        return _table([row | {"value": share, "n": self._known}])

    def _median_peaks(self) -> pa.Table:
        """Rows of the metric "peak", by explanation and embedding: the median of `peaks` over all samples, in percent.

        It is a median and not a share of samples below a threshold, which would jump where rounding moves a sample
        across. Methods whose relevance sums to nothing have no row.
        """
        rows = []
        of_all = pa.concat_tables(self._peaks).group_by(_EXPLAINED, use_threads=False)
        for row in of_all.aggregate([("peak", "list")]).to_pylist():
            of_samples = row.pop("peak_list")
            row |= {"tokens": "all", "scope": "full", "metric": "peak"}
            rows.append(row | {"value": 100 * float(np.median(of_samples)), "n": len(of_samples)})
        return _table(rows)


def summarise(samples: pa.Table, metrics: Mapping[str, Metric] = METRICS) -> pa.Table:
    """The means of `samples`, the scores of a whole cell, in the columns of `means_of`."""
    return means_of([sums_of(samples, metrics)], metrics)


def sums_of(samples: pa.Table, metrics: Mapping[str, Metric]) -> pa.Table:
    """Sums over correct `samples` by VARIANT: their number n, and the sum and the number of values of each metric."""
    right = samples["correct"]
    columns = {name: samples[name] for name in VARIANT} | {"n": right.cast(pa.int64())}
    for name in metrics:
        values = pc.if_else(right, samples[name], None)
        columns |= {f"{name}.sum": values.cast(pa.float64()), f"{name}.n": pc.is_valid(values).cast(pa.int64())}
    return _merged([pa.table(columns)], VARIANT)


def means_of(sums: Sequence[pa.Table], metrics: Mapping[str, Metric]) -> pa.Table:
    """Means from the `sums` of parts, as rows of VARIANT, metric, value and n.

    `value` is in the metric's unit, and null without correct samples. If no metric applies, as for a task without
    evidence, the table lists every metric with a null value and n = 0.
    """
    whole = _merged(sums, VARIANT).sort_by([(name, "ascending") for name in VARIANT])
    tables = []
    for name in metrics or METRICS:
        value, n = pa.nulls(len(whole), pa.float64()), pa.array([0] * len(whole), pa.int64())
        if name in metrics:
            value = pc.multiply(pc.divide(whole[f"{name}.sum"], whole[f"{name}.n"]), metrics[name].scale)
            n = whole["n"]
        of_metric = whole.select(VARIANT).append_column("metric", pa.array([name] * len(whole), pa.string()))
        tables.append(of_metric.append_column("value", value).append_column("n", n))
    return pa.concat_tables(tables)


def _peaks_of(relevance: pa.Table) -> pa.Table:
    """The explanation, embedding and peak of each row whose relevance sums to the logit: rows with a residual."""
    summing = relevance.filter(pc.is_valid(relevance["residual"]))
    return summing.select(_EXPLAINED).append_column("peak", pa.array(peaks(summing)))


def _merged_if_many(sums: list[pa.Table], keys: Sequence[str]) -> list[pa.Table]:
    """`sums`, merged into a table if there are more than _HELD of them."""
    return [_merged(sums, keys)] if len(sums) > _HELD else sums


def _merged(sums: Sequence[pa.Table], keys: Sequence[str]) -> pa.Table:
    """A table with a row for each combination of `keys`, and the sum of every other column; null without values."""
    whole = pa.concat_tables(sums)
    others = [name for name in whole.column_names if name not in keys]
    added = whole.group_by(list(keys), use_threads=False).aggregate([(name, "sum") for name in others])
    return added.select([*keys, *(f"{name}_sum" for name in others)]).rename_columns([*keys, *others])


def _table(rows: Sequence[Mapping[str, object]]) -> pa.Table:
    """`rows` as a table with the columns of `means_of`."""
    types = {"value": pa.float64(), "n": pa.int64()}
    names = [*VARIANT, "metric", "value", "n"]
    return pa.Table.from_pylist(rows, pa.schema([(name, types.get(name, pa.string())) for name in names]))


def score_layers(layers: pa.Table, masks: Masks, metrics: Mapping[str, Metric]) -> tuple[pa.Table, pa.Table]:
    """Scores the relevance of each layer, `layers` of the schema LAYERS, against the evidence in `masks`.

    Returns the means over correctly predicted samples (columns VARIANT, layer, metric, value, n) and the scores of
    every sample (columns VARIANT, layer, sample_id, correct, and a column for each metric, not scaled to its unit).
    Raises Mismatch as `score_relevance` does.
    """
    columns = [*VARIANT, "layer", "sample_id", "correct", *metrics]
    means = [LAYER_SCORES.empty_table().select([*VARIANT, "layer", "metric", "value", "n"])]
    samples = [layer_scores_samples_schema(metrics).empty_table().select(columns)]
    for layer in pc.unique(layers["layer"]).sort().to_pylist():
        relevance = layers.filter(pc.equal(layers["layer"], layer))
        scores, _ = score_relevance(relevance, masks, metrics)
        means.append(_of_layer(summarise(scores, metrics), layer, means[0].schema))
        samples.append(_of_layer(scores, layer, samples[0].schema))
    return pa.concat_tables(means), pa.concat_tables(samples)


def _of_layer(table: pa.Table, layer: int, schema: pa.Schema) -> pa.Table:
    """The table with its layer in a column, in the columns and types of `schema`."""
    numbers = pa.array([layer] * len(table), LAYERS.field("layer").type)
    return table.append_column("layer", numbers).select(schema.names).cast(schema)
