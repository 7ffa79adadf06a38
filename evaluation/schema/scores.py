"""Schemas of what is measured: scores against evidence, predictions under removal, controls and costs."""

from collections.abc import Iterable

import pyarrow as pa

from closelook.evaluation.schema.versioned import Long, Single, versioned


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
    """One number per variant and metric, in the metric's unit: a mean over `n` correctly predicted samples.

    Accuracy is a percentage of all `n` samples. Peak (version 2) is the median, over all samples, of the largest
    relevance of a token in percent of the larger logit.
    """

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
    """The schema of a sample's scores under a variant, with a column for each of `metrics`."""
    return versioned("scores_samples", 2, ScoresSamples, metrics)


def layer_scores_samples_schema(metrics: Iterable[str]) -> pa.Schema:
    """The schema of the scores of a sample's layer under a variant, with a column for each of `metrics`."""
    return versioned("layer_scores_samples", 1, LayerScoresSamples, metrics)


SCORES = versioned("scores", 2, Scores)
LAYER_SCORES = versioned("layer_scores", 1, LayerScores)

#: The columns that every file of samples' scores has, whatever metrics follow; intervals and tests read these files.
SCORES_SAMPLES = scores_samples_schema(())
LAYER_SCORES_SAMPLES = layer_scores_samples_schema(())


class Pruning:
    """A point of a pruning curve; partitioned by model, task and dtype.

    `pruned_heads` are those removed at this step (layer * H + head). `area` is the area under the whole curve of
    accuracy against the share of removed heads. Heads are ranked and evaluated on all samples, or ranked on one `half`
    of them and evaluated on the other (version 2). The first point of a curve has the `samples` that are evaluated and
    the `areas` under their own curves, whose mean is `area`.
    """

    method: str
    pooling: str
    order: str  # least_first | most_first | random
    seed: int | None
    step: int
    pruned_heads: list[int]
    accuracy: float
    n: Long  # number of samples, without those whose logits are not finite
    area: float
    half: int | None
    samples: list[str] | None
    areas: list[float] | None


PRUNING = versioned("pruning", 2, Pruning)


class Curves:
    """A deletion curve of a sample; partitioned by model, task, dtype and method.

    Lists have an entry for each state, that is each number of removed tokens; values are NaN (`correct` null) where
    relevance or logits are not finite. There are two kinds (version 2): areas, where tokens are removed one after
    another, and shares, where first no token is removed, then the shares of tokens in `percent`.
    """

    sample_id: str
    explanation: str
    embedding: str
    # The relevance by which tokens are ranked (version 3): tokens, of their embeddings without positions | positions,
    # of the sum with positions | pixels | any, of methods that do not distinguish these.
    ranked: str
    perturbation: str  # zero | black | mask | delete | resample, whose curves are means over draws
    # Areas: morf, the most relevant token is removed first | lerf, the same order reversed.
    # Shares: without_top, the most relevant tokens are removed | top_only, all other tokens are.
    order: str
    # The number that `logit` and `area` follow (version 3): target, its logit | contrast, that minus the foil's.
    score: str
    target_id: int  # the token or label whose logit is followed
    percent: list[int] | None  # of the tokens that may be removed; null for areas
    removed: list[int]  # numbers of removed tokens; of areas, from 0 to all that may be removed
    logit: list[Single]
    probability: list[Single] | None  # null for a score
    # True if the target's logit is above the foil's or, without a foil, above every other; with a gold label, if this
    # label's logit is above every other. Over several draws: if it is so in more than half of them.
    correct: list[bool] | None  # null for a score
    area: float | None  # under the curve, over the share of removed tokens; null for shares


CURVES = versioned("curves", 3, Curves)


class Trials:
    """The areas under a sample's curves for every trial of a method; partitioned by model, task, dtype and method.

    A trial is a set of options that may be chosen; trials are in the order of the manifest. NaN where curves are not
    finite.
    """

    sample_id: str
    area_morf: list[float]
    area_lerf: list[float]


TRIALS = versioned("trials", 1, Trials)


class Knockouts:
    """The explained number of a sample after ablation of the first neurons of a ranking at all positions.

    Partitioned by model, task, dtype and ranking: a method, `random` or `activation`.
    """

    sample_id: str
    explanation: str
    ranking: str
    removed: list[int]  # numbers of ablated neurons, from 0
    explained: list[Single]  # NaN where logits are not finite


KNOCKOUTS = versioned("knockouts", 1, Knockouts)


class Randomisation:
    """Agreement of a sample's relevance under the trained model and under one with random weights.

    A row for each sample and depth; partitioned by model, task, dtype and method. Weights are random from the head down
    to `depth`. Correlations are Spearman's: 1 if one of the two maps is `flat`, null if relevance is not finite or the
    sample has a single token.
    """

    sample_id: str
    explanation: str
    embedding: str
    depth: str  # head | block N | embeddings; in encoder-decoders `encoder` or `decoder` stands before `block`
    step: int  # the number of the depth, from 1 at the head
    last: bool  # all weights are random
    tokens: int
    signed: float | None  # correlation of relevance
    absolute: float | None  # of its absolute values
    architecture: float | None  # correlation under two models with all weights random; null but for the last depth
    flat: bool  # all tokens have the same relevance


RANDOMISATION = versioned("randomisation", 1, Randomisation)


class Shapley:
    """Agreement of a sample's relevance with exact Shapley values of its tokens.

    A row for each sample; partitioned by model, task, dtype and method.
    """

    sample_id: str
    explanation: str
    embedding: str
    game: str  # the explanation whose number the Shapley values sum to
    tokens: int
    correlation: float | None  # Spearman's; null if relevance or Shapley values are all equal
    error: float | None  # sum (b R - S)^2 / sum S^2 with the b >= 0 that makes it smallest; null if all S are 0


SHAPLEY = versioned("shapley", 1, Shapley)


class Runtime:
    """The time and memory of a batch.

    `method` names the pass, which may serve several methods; `planned_bytes` and `chunk` are null but for ALTI.
    """

    batch_id: str
    method: str
    stage: str  # forward | backward | aggregate | method
    length: int  # padded length of the batch, tokens
    batch: int  # samples in the batch
    wall_s: float
    peak_bytes: Long | None
    planned_bytes: Long | None
    chunk: int | None
    device: str


RUNTIME = versioned("runtime", 1, Runtime)


class Bench:
    """A number that `closelook bench NAME` measured, or a ratio with its `target`, in `bench/NAME/`.

    The metadata of a file hold its time, the command and the versions of packages.
    """

    bench: str
    device: str
    part: str  # of the benchmark; "ratio" for ratios with a target
    model: str | None  # by its name in the config; random/<geometry> for random weights
    task: str | None
    dtype: str | None
    method: str | None  # or the name of another variant that is measured
    length: int | None  # tokens
    measure: str
    value: float  # the median, if the row has quartiles
    unit: str | None
    q1: float | None
    q3: float | None
    n: Long | None  # values behind the median
    target: float | None
    better: str | None  # lower | higher
    details: str  # further facts, as JSON


BENCH = versioned("bench", 1, Bench)
