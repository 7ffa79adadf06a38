"""Means of the scores of a cell (model, task, precision, method), whose relevance comes in parts, and scores by layer.

Parts are added up, so that few numbers of a sample stay in memory. Means are over correctly predicted samples, in the
unit of the metric.
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

_EXPLAINED = ["explanation", "embedding"]


@dataclass
class Means:
    """Sums of a cell's scores over the parts that `add` has seen."""

    masks: Masks
    metrics: Mapping[str, Metric] = field(default_factory=lambda: METRICS)
    defects: Counter[str] = field(default_factory=Counter)  # rows by defect, one for each variant of a sample
    _sums: list[pa.Table] = field(default_factory=list)
    _peaks: list[pa.Table] = field(default_factory=list)  # a row for each row of relevance that sums to the logit
    _right: list[pa.Table] = field(default_factory=list)  # a row for each row of relevance

    def add(self, relevance: pa.Table) -> pa.Table:
        """Adds a part of the cell's relevance and returns its scores, the table of `score_relevance`.

        Raises Mismatch for relevance that does not belong to the masks.
        """
        samples, defects = score_relevance(relevance, self.masks, self.metrics)
        self.defects.update(defects)
        self._sums.append(sums_of(samples, self.metrics))
        summing = relevance.filter(pc.is_valid(relevance["residual"]))
        self._peaks.append(summing.select(_EXPLAINED).append_column("peak", pa.array(peaks(summing))))
        right = predicted_right(relevance.combine_chunks(), self.masks)
        self._right.append(relevance.select(_EXPLAINED).append_column("right", right))
        return samples

    def table(self) -> pa.Table:
        """Means as rows of VARIANT, metric, value (null without samples) and n, with accuracy and peak as metrics."""
        return pa.concat_tables([means_of(self._sums, self.metrics), self._accuracy(), self._median_peaks()])

    def _accuracy(self) -> pa.Table:
        """A row of the metric "accuracy": the percentage, of samples with a gold label or a foil, that are correct.

        Rows of the first explanation and embedding count, so that a sample counts once.
        """
        rows = pa.concat_tables(self._right)
        for name in _EXPLAINED if len(rows) else ():
            rows = rows.filter(pc.equal(rows[name], rows[name][0]))
        right = pc.drop_null(rows["right"]).to_numpy()
        share = 100 * float(right.mean()) if len(right) else None
        return _table([_row("none", "none", "accuracy", share, len(right))])

    def _median_peaks(self) -> pa.Table:
        """Rows of the metric "peak", by explanation and embedding: the median of `peaks` over all samples, in percent.

        It is a median and not a share of samples below a threshold, which would jump where rounding moves a sample
        across. Methods whose relevance sums to nothing have no row.
        """
        of_all = pa.concat_tables(self._peaks).group_by(_EXPLAINED, use_threads=False).aggregate([("peak", "list")])
        rows = []
        for of_samples, explanation, embedding in zip(
            *(of_all[name].to_pylist() for name in ("peak_list", *_EXPLAINED)), strict=True
        ):
            rows.append(_row(explanation, embedding, "peak", 100 * float(np.median(of_samples)), len(of_samples)))
        return _table(rows)


def summarise(samples: pa.Table, metrics: Mapping[str, Metric] = METRICS) -> pa.Table:
    """The means of `samples`, the scores of a whole cell, in the columns of `means_of`."""
    return means_of([sums_of(samples, metrics)], metrics)


def sums_of(samples: pa.Table, metrics: Mapping[str, Metric]) -> pa.Table:
    """By VARIANT, the number of correct `samples`, and the sum and the number of their values of each metric."""
    right = samples["correct"]
    columns = {name: samples[name] for name in VARIANT} | {"correct": right.cast(pa.int64())}
    for name in metrics:
        values = pc.if_else(right, samples[name], None)
        columns[name] = values.cast(pa.float64())
    aggregations = [("correct", "sum"), *((name, number) for name in metrics for number in ("sum", "count"))]
    return pa.table(columns).group_by(VARIANT, use_threads=False).aggregate(aggregations)


def means_of(sums: Sequence[pa.Table], metrics: Mapping[str, Metric]) -> pa.Table:
    """Means from the `sums` of parts, as rows of VARIANT, metric, value and n.

    `value` is in the metric's unit, and null without correct samples. If no metric applies, as for a task without
    evidence, the table lists every metric with a null value and n = 0.
    """
    parts = pa.concat_tables(sums)
    numbers = [name for name in parts.column_names if name not in VARIANT]
    whole = parts.group_by(VARIANT, use_threads=False).aggregate([(name, "sum") for name in numbers])
    whole = whole.sort_by([(name, "ascending") for name in VARIANT])
    tables = []
    for name in metrics or METRICS:
        value, n = pa.nulls(len(whole), pa.float64()), pa.array([0] * len(whole), pa.int64())
        if name in metrics:
            value = pc.multiply(pc.divide(whole[f"{name}_sum_sum"], whole[f"{name}_count_sum"]), metrics[name].scale)
            n = whole["correct_sum_sum"]
        of_metric = whole.select(VARIANT).append_column("metric", pa.array([name] * len(whole), pa.string()))
        tables.append(of_metric.append_column("value", value).append_column("n", n))
    return pa.concat_tables(tables)


def _row(explanation: str, embedding: str, metric: str, value: float | None, n: int) -> tuple[object, ...]:
    """A row of `means_of` that is over all tokens."""
    return explanation, embedding, "all", "full", metric, value, n


def _table(rows: Sequence[tuple[object, ...]]) -> pa.Table:
    """`rows` as a table with the columns of `means_of`."""
    types = {"value": pa.float64(), "n": pa.int64()}
    names = [*VARIANT, "metric", "value", "n"]
    schema = pa.schema([(name, types.get(name, pa.string())) for name in names])
    return pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows], schema)


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
