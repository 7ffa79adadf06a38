"""Schemas of relevance: of a sample's tokens, of attention heads, layers, labels and neurons, and of activations."""

from closelook.evaluation.schema.versioned import Long, Single, in_double, versioned


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


class Neurons:
    """The most relevant neurons of each sample, and the relevance that crosses each layer boundary.

    At most 50 neurons, in descending order of their relevance, a sum over positions. Layers and neurons are counted
    from 0; the lowest layer is 0. In a mixture of experts the numbers of a layer's neurons continue from one expert to
    the next, and `name` tells the expert (version 3).
    """

    sample_id: str
    explanation: str
    layer: list[int]
    neuron: list[int]
    name: list[str]  # LAYER.NEURON, LAYER.EXPERT.NEURON
    relevance: list[Single]
    position: list[int]  # where the neuron's absolute relevance is largest
    activation: list[Single]  # at this position
    layer_relevance: list[Single]  # [L], of all neurons of each layer
    # Of methods that conserve the explained number: relevance at each layer boundary [L + 1], from below the first
    # block to above the last, and the largest magnitude of a token there (version 2); the relevance that each block
    # keeps [L], by its part, routers in mixtures of experts (version 3).
    boundaries: list[Single] | None
    peaks: list[float] | None
    kept_by_biases: list[Single] | None
    kept_by_attention: list[Single] | None
    kept_by_router: list[Single] | None


NEURONS = versioned("neurons", 3, Neurons)


class Contexts:
    """The max-activating examples of each neuron in a corpus, here called contexts, by layer, neuron and rank.

    A shard for each layer; partitioned by model, corpus and dtype. A context is a passage of a text.
    """

    layer: int
    neuron: int
    rank: int  # from 1; equal activations are ranked by the order of the corpus
    activation: float  # the largest over the positions of ordinary tokens
    position: int  # index in `input_ids` of this activation
    input_ids: list[int]  # special tokens of the tokenizer's template included
    text: str  # of the context
    number: Long  # number of its text in the corpus, from 0
    start: int  # where the context begins in this text, in characters
    place: str  # where this text stands: file:line or similar


CONTEXTS = versioned("contexts", 1, Contexts)


class Activations:
    """Activations of each neuron of a layer over all ordinary tokens of a corpus, in shards named as the contexts'."""

    layer: int
    neuron: int
    tokens: Long  # number of tokens with a finite activation
    mean: float | None  # of finite activations; null without any
    histogram: list[Long]  # counts of finite activations between the `boundaries` that the manifest lists
    not_finite: Long  # number of tokens with an activation that is not finite (version 2)


ACTIVATIONS = versioned("activations", 2, Activations)


class Heatmaps:
    """Relevance of the tokens of a neuron's first contexts, for the neuron's activation in them.

    A row belongs to the context of the same layer, neuron and rank; partitioned by model, corpus, dtype and method.
    """

    layer: int
    neuron: int
    rank: int
    relevance: list[Single] | None  # of each of the context's `input_ids`; null if a value is not finite


HEATMAPS = versioned("heatmaps", 1, Heatmaps)


class ContextsPart:
    """The findings of a unit of work of a corpus for each neuron; units are merged into contexts and activations."""

    layer: int
    neuron: int
    activation: list[float]
    context: list[int]  # numbers of contexts within the unit
    position: list[int]
    total: float
    histogram: list[Long]
    not_finite: Long  # tokens (version 2)
    contexts: Long  # of the unit
    tokens: Long  # of the unit, ordinary ones
    without_tokens: Long  # texts of the unit that have none


CONTEXTS_PART = versioned("contexts_part", 2, ContextsPart)


class ContextsTexts:
    """The contexts of a unit of work of a corpus that its rows of `ContextsPart` name."""

    context: int
    input_ids: list[int]
    text: str
    number: Long
    start: int
    place: str


CONTEXTS_TEXTS = versioned("contexts_texts", 1, ContextsTexts)
