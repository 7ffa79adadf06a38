"""Schemas of controls: whether explanations are about the model at all."""

from evaluation.schema.versioned import versioned


class Randomisation:
    """Agreement of a sample's relevance under the trained and a randomised model.

    A row a sample and depth; partitioned by model, task, dtype and method. Weights are random from the head down to
    `depth`. Correlations are Spearman's: 1 where one of the two maps is `flat`, null where relevance is not finite or
    the sample has a single token.
    """

    sample_id: str
    explanation: str
    embedding: str
    depth: str  # head | block N | embeddings, of an encoder-decoder with `encoder` or `decoder` before `block`
    step: int  # the number of the depth, from 1 at the head
    last: bool  # all weights are random
    tokens: int
    signed: float | None  # correlation of relevance
    absolute: float | None  # of its absolute values
    architecture: float | None  # of relevance under two models that are wholly random; null but for the last depth
    flat: bool  # all tokens have the same relevance


RANDOMISATION = versioned("randomisation", 1, Randomisation)


class Rewritten:
    """Change of a sample's relevance where the same function is computed with other weights.

    A row a sample and rewriting; partitioned by model, task, dtype and method.
    """

    sample_id: str
    explanation: str
    embedding: str
    rewriting: str  # heads permuted | neurons permuted | neurons rescaled | norms folded | values rotated
    change: float | None  # the largest of a token, as a share of the largest relevance; null where that is 0
    logit_change: float  # the largest of target and foil: rounding


REWRITTEN = versioned("rewritten", 1, Rewritten)


class Shapley:
    """Nearness of a sample's relevance to exact Shapley values of its tokens.

    A row a sample; partitioned by model, task, dtype and method.
    """

    sample_id: str
    explanation: str
    embedding: str
    game: str  # the explanation whose number is shared out
    tokens: int
    correlation: float | None  # Spearman's; null where one of the two has no order
    error: float | None  # sum (b R - S)^2 / sum S^2 with the b >= 0 that makes it least; null where S is 0


SHAPLEY = versioned("shapley", 1, Shapley)
