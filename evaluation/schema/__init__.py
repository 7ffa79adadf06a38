"""The Parquet schemas of the store, each defined once, by subject.

A schema carries its name and version in its metadata. Writers pass it, readers call :func:`check`. Hive partition keys
(``task=``, ``model=``, ``dtype=``, ``method=``, ``tokenizer=``) live in the path and are not repeated in the files.
"""

from evaluation.schema.answers import ABLATIONS, SOURCES
from evaluation.schema.controls import RANDOMISATION, REWRITTEN, SHAPLEY
from evaluation.schema.costs import BENCH, RUNTIME
from evaluation.schema.faithfulness import CURVES, KNOCKOUTS, PRUNING, TRIALS
from evaluation.schema.neurons import (
    ACTIVATIONS,
    CONTEXTS,
    CONTEXTS_PART,
    CONTEXTS_TEXTS,
    CONTEXTS_TIES,
    HEATMAPS,
    NEURONS,
    WRITINGS,
)
from evaluation.schema.relevance import HEADS, LABELS, LAYERS, RELEVANCE, RELEVANCE_DOUBLE
from evaluation.schema.samples import ANSWER_VIEW, ANSWERS_VERSION, GENERIC, REJECT, VIEW
from evaluation.schema.scores import (
    LAYER_SCORES,
    LAYER_SCORES_SAMPLES,
    SCORES,
    SCORES_SAMPLES,
    layer_scores_samples_schema,
    scores_samples_schema,
)
from evaluation.schema.tidy import TOKENS, WORDS
from evaluation.schema.versioned import SchemaMismatch, check, is_named, titled

__all__ = [
    "ABLATIONS",
    "ACTIVATIONS",
    "ANSWERS_VERSION",
    "ANSWER_VIEW",
    "BENCH",
    "CONTEXTS",
    "CONTEXTS_PART",
    "CONTEXTS_TEXTS",
    "CONTEXTS_TIES",
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
    "REWRITTEN",
    "RUNTIME",
    "SCORES",
    "SCORES_SAMPLES",
    "SHAPLEY",
    "SOURCES",
    "TOKENS",
    "TRIALS",
    "VIEW",
    "WORDS",
    "WRITINGS",
    "SchemaMismatch",
    "check",
    "is_named",
    "layer_scores_samples_schema",
    "scores_samples_schema",
    "titled",
]
