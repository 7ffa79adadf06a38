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
