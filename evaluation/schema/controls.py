"""Schemas of controls, which test whether relevance depends on the model."""

from evaluation.schema.versioned import versioned


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


class Rewritten:
    """Change of a sample's relevance if other weights compute the same function.

    A row for each sample and rewriting of weights; partitioned by model, task, dtype and method.
    """

    sample_id: str
    explanation: str
    embedding: str
    rewriting: str  # heads permuted | neurons permuted | neurons rescaled | norms folded | values rotated
    change: float | None  # the largest change of a token, as a share of the largest relevance; null if that is 0
    logit_change: float  # the larger change of the target's and the foil's logit, which is rounding error


REWRITTEN = versioned("rewritten", 1, Rewritten)


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
