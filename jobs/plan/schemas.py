"""The schemas of the shards of cells. A key covers its name and version: what is stored otherwise is made anew."""

from __future__ import annotations

import pyarrow as pa

from evaluation.schema import CURVES, HEADS, LABELS, LAYERS, NEURONS, RELEVANCE, RELEVANCE_DOUBLE, TRIALS

_OWN = {"heads": HEADS, "layers": LAYERS, "labels": LABELS, "neurons": NEURONS, "curves": CURVES, "trials": TRIALS}


def schema_of(product: str, dtype: str) -> pa.Schema:
    """The schema of a cell's shards."""
    return _OWN.get(product, RELEVANCE_DOUBLE if dtype == "float64" else RELEVANCE)
