"""Scores of relevance layer by layer against evidence (NormXLogit 4.2)."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from evaluation.schema import LAYER_SCORES, LAYERS, layer_scores_samples_schema
from evaluation.scoring.means import summarise
from evaluation.scoring.metrics import Metric
from evaluation.scoring.samples import VARIANT, Masks, score_relevance

_MEANS = [*VARIANT, "layer", "metric", "value", "n"]


def score_layers(layers: pa.Table, masks: Masks, metrics: Mapping[str, Metric]) -> tuple[pa.Table, pa.Table]:
    """Scores the relevance of each layer, `layers` of the schema LAYERS, against the evidence in `masks`.

    Returns the means over correctly predicted samples (columns VARIANT, layer, metric, value, n) and the scores of
    every sample (columns VARIANT, layer, sample_id, correct, and a column for each metric, not scaled to its unit).
    Raises Mismatch as `score_relevance` does.
    """
    columns = [*VARIANT, "layer", "sample_id", "correct", *metrics]
    means = [LAYER_SCORES.empty_table().select(_MEANS)]
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
