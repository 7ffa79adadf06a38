"""The Parquet schemas of the store, each defined once, by subject.

A schema carries its name and version in its metadata. Writers pass it, readers call :func:`check`. Hive partition keys
(``task=``, ``model=``, ``dtype=``, ``method=``, ``tokenizer=``) live in the path and are not repeated in the files;
files of scores, whose paths have none, hold them as columns.
"""

from closelook.evaluation.schema.relevance import (
    ACTIVATIONS,
    CONTEXTS,
    CONTEXTS_PART,
    CONTEXTS_TEXTS,
    HEADS,
    HEATMAPS,
    LABELS,
    LAYERS,
    NEURONS,
    RELEVANCE,
    RELEVANCE_DOUBLE,
)
from closelook.evaluation.schema.samples import (
    ABLATIONS,
    ANSWER_VIEW,
    ANSWERS_VERSION,
    GENERIC,
    REJECT,
    SOURCES,
    TOKENS,
    VIEW,
    WORDS,
)
from closelook.evaluation.schema.scores import (
    BENCH,
    CURVES,
    KNOCKOUTS,
    LAYER_SCORES,
    LAYER_SCORES_SAMPLES,
    PRUNING,
    RANDOMISATION,
    RUNTIME,
    SCORES,
    SCORES_SAMPLES,
    SHAPLEY,
    TRIALS,
    layer_scores_samples_schema,
    scores_samples_schema,
)
from closelook.evaluation.schema.versioned import SchemaMismatch, check, is_named, titled

__all__ = [
    "ABLATIONS",
    "ACTIVATIONS",
    "ANSWERS_VERSION",
    "ANSWER_VIEW",
    "BENCH",
    "CONTEXTS",
    "CONTEXTS_PART",
    "CONTEXTS_TEXTS",
    "CURVES",
    "GENERIC",
    "HEADS",
    "HEATMAPS",
    "KNOCKOUTS",
    "LABELS",
    "LAYERS",
    "LAYER_SCORES",
    "LAYER_SCORES_SAMPLES",
    "NEURONS",
    "PRUNING",
    "RANDOMISATION",
    "REJECT",
    "RELEVANCE",
    "RELEVANCE_DOUBLE",
    "RUNTIME",
    "SCORES",
    "SCORES_SAMPLES",
    "SHAPLEY",
    "SOURCES",
    "TOKENS",
    "TRIALS",
    "VIEW",
    "WORDS",
    "SchemaMismatch",
    "check",
    "is_named",
    "layer_scores_samples_schema",
    "scores_samples_schema",
    "titled",
]
