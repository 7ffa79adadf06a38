"""What methods say of neurons, what those write, and what a corpus shows of them."""

from __future__ import annotations

import pyarrow as pa

from evaluation.schema.versioned import FLOAT, INT, STR, versioned

#: The most relevant neurons of each sample, at most 50, in descending order of the sum over positions, and what crosses
#: each layer boundary. Layers are counted from 0, the lowest, as neurons are; in a layer with experts the numbers of
#: neurons go on from one expert to the next, and `name` says which it is (version 3).
NEURONS = versioned(
    "neurons",
    3,
    [
        ("sample_id", STR, False),
        ("explanation", STR, False),
        ("layer", pa.list_(pa.int32()), False),
        ("neuron", pa.list_(pa.int32()), False),
        ("name", pa.list_(STR), False),  # LAYER.NEURON, LAYER.EXPERT.NEURON
        ("relevance", pa.list_(pa.float32()), False),
        ("position", pa.list_(pa.int32()), False),  # where the neuron's absolute relevance is largest
        ("activation", pa.list_(pa.float32()), False),  # there
        ("layer_relevance", pa.list_(pa.float32()), False),  # [L], of all neurons of each layer
        # Where a method promises a sum: below and above the blocks [L + 1], the largest of a token there, by magnitude
        # (version 2), and what each block keeps [L], routers where there are experts (version 3).
        ("boundaries", pa.list_(pa.float32()), True),
        ("peaks", pa.list_(FLOAT), True),
        ("kept_by_biases", pa.list_(pa.float32()), True),
        ("kept_by_attention", pa.list_(pa.float32()), True),
        ("kept_by_router", pa.list_(pa.float32()), True),
    ],
)

#: What the neurons that a run keeps write to the vocabulary, their value vectors times the unembedding, and the tokens
#: nearest to their keys, by cosine; partitioned by model and dtype. The first of a list is the farthest out.
WRITINGS = versioned(
    "writings",
    1,
    [
        ("layer", INT, False),
        ("neuron", INT, False),
        ("promoted", pa.list_(STR), False),
        ("promoted_logit", pa.list_(pa.float32()), False),  # for each unit of activation
        ("suppressed", pa.list_(STR), False),
        ("suppressed_logit", pa.list_(pa.float32()), False),
        ("entropy", FLOAT, False),  # of the softmax over the vocabulary, in nats
        ("key", pa.list_(STR), False),  # none where tokens are embedded in another width than that of the layers
        ("key_cosine", pa.list_(pa.float32()), False),
    ],
)

#: The contexts of a corpus in which each neuron is most active, a shard a layer, in order of layer, neuron and rank;
#: partitioned by model, corpus and dtype. A context is a text, or so many tokens of it.
CONTEXTS = versioned(
    "contexts",
    1,
    [
        ("layer", INT, False),
        ("neuron", INT, False),
        ("rank", INT, False),  # from 1; near ties by activations computed alone, and of equal ones the earlier first
        ("activation", FLOAT, False),  # the largest over the positions of ordinary tokens
        ("position", INT, False),  # where in `input_ids`
        ("input_ids", pa.list_(pa.int32()), False),  # with what the tokenizer's template adds
        ("text", STR, False),  # of the context
        ("number", pa.int64(), False),  # of the text in the corpus, from 0
        ("start", INT, False),  # of the context in that text, in characters
        ("place", STR, False),  # of that text: file:line or similar
    ],
)

#: What each neuron of a layer does over all ordinary tokens of a corpus; beside the contexts, in shards of their names.
ACTIVATIONS = versioned(
    "activations",
    2,
    [
        ("layer", INT, False),
        ("neuron", INT, False),
        ("tokens", pa.int64(), False),  # at which its activation is finite
        ("mean", FLOAT, True),  # there; null where there is none
        ("histogram", pa.list_(pa.int64()), False),  # of them, between the `boundaries` that the manifest lists
        ("not_finite", pa.int64(), False),  # tokens at which its activation is not finite (version 2)
    ],
)

#: Which tokens make a neuron active in its first contexts: relevance for its activation there, beside the contexts by
#: layer, neuron and rank; partitioned by model, corpus, dtype and method.
HEATMAPS = versioned(
    "heatmaps",
    1,
    [
        ("layer", INT, False),
        ("neuron", INT, False),
        ("rank", INT, False),
        ("relevance", pa.list_(pa.float32()), True),  # of each of the context's `input_ids`; null where not finite
    ],
)

#: A unit of a corpus on its way into contexts and activations: what every neuron does there, and the contexts that it
#: names.
CONTEXTS_PART = versioned(
    "contexts_part",
    2,
    [
        ("layer", INT, False),
        ("neuron", INT, False),
        ("activation", pa.list_(FLOAT), False),
        ("context", pa.list_(pa.int32()), False),  # numbers within the unit
        ("position", pa.list_(pa.int32()), False),
        ("total", FLOAT, False),
        ("histogram", pa.list_(pa.int64()), False),
        ("not_finite", pa.int64(), False),  # tokens (version 2)
        ("contexts", pa.int64(), False),  # of the unit
        ("tokens", pa.int64(), False),  # of the unit, ordinary ones
        ("without_tokens", pa.int64(), False),  # texts of the unit that have none
    ],
)
#: Activations that lie too close to be ranked as a batch gives them: each from a forward of its context alone.
CONTEXTS_TIES = versioned(
    "contexts_ties",
    1,
    [
        ("layer", INT, False),
        ("neuron", INT, False),
        ("context", pa.int64(), False),  # as the driver numbers the contexts of all units
        ("activation", FLOAT, False),
        ("position", INT, False),
    ],
)
CONTEXTS_TEXTS = versioned(
    "contexts_texts",
    1,
    [
        ("context", INT, False),
        ("input_ids", pa.list_(pa.int32()), False),
        ("text", STR, False),
        ("number", pa.int64(), False),
        ("start", INT, False),
        ("place", STR, False),
    ],
)
