"""How far relevance finds evidence, by variant: a number each, and of every sample."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from evaluation.schema.versioned import BOOL, FLOAT, INT, STR, versioned

_VARIANT = [
    ("model", STR, False),
    ("task", STR, False),
    ("dtype", STR, False),
    ("method", STR, False),
    ("explanation", STR, False),
    ("embedding", STR, False),
    ("tokens", STR, False),  # non_special | all
    ("scope", STR, False),  # context | full
]

#: One number per variant and metric, in percent over `n` correctly predicted samples.
SCORES = versioned(
    "scores",
    1,
    [*_VARIANT, ("metric", STR, False), ("value", FLOAT, True), ("n", pa.int64(), False)],
)

#: One number per variant, layer and metric; those that NormXLogit holds layers against evidence by.
LAYER_SCORES = versioned(
    "layer_scores",
    1,
    [
        *_VARIANT,
        ("layer", INT, False),
        ("metric", STR, False),
        ("value", FLOAT, True),
        ("n", pa.int64(), False),
    ],
)


def layer_scores_samples_schema(metrics: Iterable[str]) -> pa.Schema:
    """One layer of a sample under one variant, with a column for each of `metrics`."""
    columns = [("sample_id", STR, False), ("correct", BOOL, False), *[(name, pa.float32(), True) for name in metrics]]
    return versioned("layer_scores_samples", 1, [*_VARIANT, ("layer", INT, False), *columns])


#: What every file of them has, whatever metrics there were; the input of intervals and paired tests.
LAYER_SCORES_SAMPLES = layer_scores_samples_schema(())


def scores_samples_schema(metrics: Iterable[str]) -> pa.Schema:
    """One sample under one variant, with a column for each of `metrics`: null where one does not apply to the task."""
    return versioned(
        "scores_samples",
        2,
        [
            *_VARIANT,
            ("sample_id", STR, False),
            ("correct", BOOL, False),
            *[(metric, pa.float32(), True) for metric in metrics],
        ],
    )


#: What every file of them has, whatever metrics there were; the input of intervals and paired tests.
SCORES_SAMPLES = scores_samples_schema(())
