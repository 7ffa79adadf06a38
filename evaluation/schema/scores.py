"""Schemas of scores against evidence by variant: their means, and those of every sample."""

from collections.abc import Iterable

import pyarrow as pa

from evaluation.schema.versioned import Long, versioned


class Variant:
    """The subject of a score: a method on a task, with its variant of relevance and of the tokens that count."""

    model: str
    task: str
    dtype: str
    method: str
    explanation: str
    embedding: str
    tokens: str  # non_special | all
    scope: str  # context | full


class Scores(Variant):
    """One number per variant and metric, in percent over `n` correctly predicted samples."""

    metric: str
    value: float | None
    n: Long


class LayerScores(Variant):
    """A score for each variant, layer and metric, of the metrics that NormXLogit applies to layers."""

    layer: int
    metric: str
    value: float | None
    n: Long


class ScoresSamples(Variant):
    """The scores of a sample under a variant; a column for each metric follows."""

    sample_id: str
    correct: bool


class LayerScoresSamples(Variant):
    """The scores of a layer for a sample under a variant; a column for each metric follows."""

    layer: int
    sample_id: str
    correct: bool


def scores_samples_schema(metrics: Iterable[str]) -> pa.Schema:
    """The schema of a sample's scores under a variant, with a column for each of `metrics`.

    A column is null for a metric that does not apply to the task.
    """
    return versioned("scores_samples", 2, ScoresSamples, metrics)


def layer_scores_samples_schema(metrics: Iterable[str]) -> pa.Schema:
    """The schema of the scores of a sample's layer under a variant, with a column for each of `metrics`."""
    return versioned("layer_scores_samples", 1, LayerScoresSamples, metrics)


SCORES = versioned("scores", 1, Scores)
LAYER_SCORES = versioned("layer_scores", 1, LayerScores)

#: The columns that every file of samples' scores has, whatever metrics follow; intervals and tests read these files.
SCORES_SAMPLES = scores_samples_schema(())
LAYER_SCORES_SAMPLES = layer_scores_samples_schema(())
