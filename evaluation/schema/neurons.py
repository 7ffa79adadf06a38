"""Schemas of neurons: their relevance, their logit lens, and their activations in a corpus."""

from evaluation.schema.versioned import Long, Single, versioned


class Neurons:
    """The most relevant neurons of each sample, and the relevance that crosses each layer boundary.

    At most 50 neurons, in descending order of the sum over positions. Layers are counted from 0, the lowest, as
    neurons are; in a layer with experts the numbers of neurons go on from one expert to the next, and `name` says
    which it is (version 3).
    """

    sample_id: str
    explanation: str
    layer: list[int]
    neuron: list[int]
    name: list[str]  # LAYER.NEURON, LAYER.EXPERT.NEURON
    relevance: list[Single]
    position: list[int]  # where the neuron's absolute relevance is largest
    activation: list[Single]  # there
    layer_relevance: list[Single]  # [L], of all neurons of each layer
    # Where a method promises a sum: below and above the blocks [L + 1], the largest of a token there, by magnitude
    # (version 2), and what each block keeps [L], routers where there are experts (version 3).
    boundaries: list[Single] | None
    peaks: list[float] | None
    kept_by_biases: list[Single] | None
    kept_by_attention: list[Single] | None
    kept_by_router: list[Single] | None


NEURONS = versioned("neurons", 3, Neurons)


class Writings:
    """Logit lens of the neurons that a run keeps, and the tokens nearest to their keys; partitioned by model and dtype.

    Value vectors times the unembedding, and cosines with the keys. The first of a list is the farthest out.
    """

    layer: int
    neuron: int
    promoted: list[str]
    promoted_logit: list[Single]  # for each unit of activation
    suppressed: list[str]
    suppressed_logit: list[Single]
    entropy: float  # of the softmax over the vocabulary, in nats
    key: list[str]  # none where tokens are embedded in another width than that of the layers
    key_cosine: list[Single]


WRITINGS = versioned("writings", 1, Writings)


class Contexts:
    """The max-activating examples of each neuron in a corpus, here called contexts, by layer, neuron and rank.

    A shard a layer; partitioned by model, corpus and dtype. A context is a text, or so many tokens of it.
    """

    layer: int
    neuron: int
    rank: int  # from 1; near ties by activations computed alone, and of equal ones the earlier first
    activation: float  # the largest over the positions of ordinary tokens
    position: int  # where in `input_ids`
    input_ids: list[int]  # with what the tokenizer's template adds
    text: str  # of the context
    number: Long  # of the text in the corpus, from 0
    start: int  # of the context in that text, in characters
    place: str  # of that text: file:line or similar


CONTEXTS = versioned("contexts", 1, Contexts)


class Activations:
    """Activations of each neuron of a layer over all ordinary tokens of a corpus, in shards named as the contexts'."""

    layer: int
    neuron: int
    tokens: Long  # at which its activation is finite
    mean: float | None  # there; null where there is none
    histogram: list[Long]  # of them, between the `boundaries` that the manifest lists
    not_finite: Long  # tokens at which its activation is not finite (version 2)


ACTIVATIONS = versioned("activations", 2, Activations)


class Heatmaps:
    """Relevance of the tokens of a neuron's first contexts for its activation there.

    Rows belong to the contexts of equal layer, neuron and rank; partitioned by model, corpus, dtype and method.
    """

    layer: int
    neuron: int
    rank: int
    relevance: list[Single] | None  # of each of the context's `input_ids`; null where not finite


HEATMAPS = versioned("heatmaps", 1, Heatmaps)


class ContextsPart:
    """A unit of a corpus on its way into contexts and activations: figures of every neuron and its contexts."""

    layer: int
    neuron: int
    activation: list[float]
    context: list[int]  # numbers within the unit
    position: list[int]
    total: float
    histogram: list[Long]
    not_finite: Long  # tokens (version 2)
    contexts: Long  # of the unit
    tokens: Long  # of the unit, ordinary ones
    without_tokens: Long  # texts of the unit that have none


CONTEXTS_PART = versioned("contexts_part", 2, ContextsPart)


class ContextsTies:
    """Activations that lie too close to be ranked as a batch gives them: each from a forward of its context alone."""

    layer: int
    neuron: int
    context: Long  # as the driver numbers the contexts of all units
    activation: float
    position: int


CONTEXTS_TIES = versioned("contexts_ties", 1, ContextsTies)


class ContextsTexts:
    """The contexts of a unit of a corpus that its neurons name."""

    context: int
    input_ids: list[int]
    text: str
    number: Long
    start: int
    place: str


CONTEXTS_TEXTS = versioned("contexts_texts", 1, ContextsTexts)
