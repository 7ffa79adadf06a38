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
    """The scores of each layer: means over correctly predicted samples, as of relevance, and every sample's.

    Columns: VARIANT, layer, metric, value, n; and VARIANT, layer, sample_id, correct, metrics as they compute. `layers`
    is of the schema LAYERS. Raises what `score_relevance` raises.
    """
    of_samples = [*VARIANT, "layer", "sample_id", "correct", *metrics]
    means = [LAYER_SCORES.empty_table().select(_MEANS)]
    every = [layer_scores_samples_schema(metrics).empty_table().select(of_samples)]
    for layer in pc.unique(layers["layer"]).sort().to_pylist():
        of_layer = layers.filter(pc.equal(layers["layer"], layer))
        samples, _ = score_relevance(of_layer, masks, metrics)
        for tables, table, columns in ((means, summarise(samples, metrics), _MEANS), (every, samples, of_samples)):
            numbered = table.append_column("layer", pa.array([layer] * len(table), LAYERS.field("layer").type))
            tables.append(numbered.select(columns).cast(tables[0].schema))
    return pa.concat_tables(means), pa.concat_tables(every)
