"""What each layer says of the tokens, held against evidence (NormXLogit 4.2): scores layer by layer."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from evaluation.schema import LAYER_SCORES, LAYERS
from evaluation.scoring.metrics import Metric
from evaluation.scoring.samples import VARIANT, Masks, score_relevance, summarise

_NOTHING = LAYER_SCORES.empty_table().select([*VARIANT, "layer", "metric", "value", "n"])


def score_layers(layers: pa.Table, masks: Masks, metrics: Mapping[str, Metric]) -> pa.Table:
    """VARIANT, layer, metric, value, n: of each layer the means over correctly predicted samples, as of relevance.

    `layers` is of the schema LAYERS. Raises what `score_relevance` raises.
    """
    tables = []
    for layer in pc.unique(layers["layer"]).sort().to_pylist():
        of_layer = layers.filter(pc.equal(layers["layer"], layer))
        samples, _ = score_relevance(of_layer, masks, metrics)
        means = summarise(samples, metrics)
        tables.append(means.append_column("layer", pa.array([layer] * len(means), LAYERS.field("layer").type)))
    return pa.concat_tables(tables).select(_NOTHING.column_names) if tables else _NOTHING
