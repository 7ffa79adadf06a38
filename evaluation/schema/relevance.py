"""Schemas of relevance: of a sample's tokens, and of attention heads, layers and labels."""

from evaluation.schema.versioned import Single, in_double, versioned


class Relevance:
    """Relevance of the tokens of a sample; in lists of float64 for models run in double precision."""

    sample_id: str
    explanation: str  # contrastive | target | log_prob | none
    embedding: str  # full | partial | none
    relevance: list[Single]  # [T], unpadded
    explained: float
    residual: float | None  # sum of relevance minus explained; null for methods that do not conserve it
    logit_target: float
    logit_foil: float | None
    predicted_id: int | None  # the model's own prediction, if that is explained (version 2)
    pixels: list[Single] | None  # [H * W] of an image, for methods that give relevance of pixels (version 3)
    # [U] of what the decoder of an encoder-decoder has seen, for methods that give it: the start token, then the
    # view's `decoder_input_ids` (version 4)
    decoder_relevance: list[Single] | None


RELEVANCE = versioned("relevance", 4, Relevance)
RELEVANCE_DOUBLE = in_double(RELEVANCE)


class Heads:
    """Relevance of attention heads, pooled over positions: [L * H], layer by layer."""

    sample_id: str
    explanation: str
    pooling: str  # relu_dim | relu_token | none
    relevance: list[Single]


HEADS = versioned("heads", 1, Heads)


class Layers:
    """Relevance of the tokens [T] at each layer of a model; layers are counted from 1, the lowest."""

    sample_id: str
    explanation: str
    embedding: str
    layer: int
    relevance: list[Single]
    logit_target: float
    logit_foil: float | None
    predicted_id: int | None  # the model's own prediction, where that is explained


LAYERS = versioned("layers", 1, Layers)


class Labels:
    """Relevance for every label of a classifier, a row for each label.

    The relevance for the predicted label is also in rows of `Relevance`.
    """

    sample_id: str
    embedding: str
    label_id: int  # of the model's outputs
    relevance: list[Single]  # [T], unpadded
    explained: float  # the label's logit
    residual: float | None  # sum of relevance minus explained; null for methods that do not conserve it
    predicted_id: int | None  # the label that the model predicts; null if the sample has a target
    pixels: list[Single] | None  # [H * W] of an image, for methods that give relevance of pixels


LABELS = versioned("labels", 1, Labels)
