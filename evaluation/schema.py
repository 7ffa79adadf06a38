"""Every Parquet schema of the store, written once.

A schema carries its name and version in its metadata. Writers pass it, readers call :func:`check`. Hive partition keys
(``task=``, ``model=``, ``dtype=``, ``method=``, ``tokenizer=``) live in the path and are not repeated in the files.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

NAME_KEY, VERSION_KEY = b"closelook.schema", b"closelook.version"


class SchemaMismatch(ValueError):
    """A file was written under another schema, or another version of it."""


def _schema(name: str, version: int, fields: list[tuple[str, pa.DataType, bool]]) -> pa.Schema:
    """Fields are (column, type, nullable)."""
    columns = [pa.field(column, kind, nullable=nullable) for column, kind, nullable in fields]
    return pa.schema(columns, metadata={NAME_KEY: name.encode(), VERSION_KEY: str(version).encode()})


_STR, _INT, _FLOAT, _BOOL = pa.string(), pa.int32(), pa.float64(), pa.bool_()
_SPANS = pa.list_(pa.list_(pa.int32()))  # [[start, end), ...] in characters of `text`

#: Model-independent samples. `slot` is the character offset in `text` where the target word goes; a text that a model
#: is to go on with has neither (version 2). A text that has a label or a score has that instead, and where it is one of
#: a pair, the `second` text; `evidence` and `scope` are of `text` (version 3). A picture has the bytes of its file as
#: `image`, in `text` where it is from, and as evidence `regions` of its pixels (version 4). `meta` is JSON.
GENERIC = _schema(
    "generic",
    4,
    [
        ("sample_id", _STR, False),
        ("source", _STR, False),
        ("text", _STR, False),
        ("slot", _INT, True),
        ("target", _STR, True),
        ("foil", _STR, True),
        ("second", _STR, True),
        ("label", _STR, True),  # by its name in the task
        ("score", _FLOAT, True),
        ("evidence", _SPANS, False),
        ("scope", _SPANS, True),
        ("meta", _STR, False),
        ("image", pa.binary(), True),  # PNG, JPEG, WebP or BMP
        ("regions", _SPANS, True),  # [[top, left, bottom, right), ...] in pixels of the image; null: nobody marked any
    ],
)

#: Rows that were left out: by a source (`stage` "source", `where` file:line), an annotator ("annotate") or a tokeniser
#: ("view").
REJECT = _schema(
    "reject",
    1,
    [
        ("sample_id", _STR, True),
        ("stage", _STR, False),
        ("reason", _STR, False),
        ("where", _STR, True),
        ("detail", _STR, True),
    ],
)

#: Samples as one tokenizer sees them. Lists have `length` entries; `position` is where the model predicts. A causal
#: model's input ends with the tokens that target and foil begin with alike, such as a space of its own (version 2).
#: `target_id` is null where the model's own prediction is explained, `evidence_mask` for tasks without evidence (3).
#: Of pairs, `token_type_ids` tell the texts apart, where the tokenizer does; `label` and `score` are the samples' (4).
#: Of a picture, tokens are the class token and the patches row by row, all with id 0, and `pixels` are what the model
#: sees, resized and cropped, before its numbers are rescaled and normalised (5).
VIEW = _schema(
    "view",
    6,
    [
        ("sample_id", _STR, False),
        ("input_ids", pa.list_(pa.int32()), False),
        ("position", _INT, False),
        ("target_id", _INT, True),
        ("foil_id", _INT, True),
        ("evidence_mask", pa.list_(_BOOL), True),
        ("special_mask", pa.list_(_BOOL), False),
        ("scope_mask", pa.list_(_BOOL), True),
        ("length", _INT, False),
        ("token_type_ids", pa.list_(pa.int32()), True),
        ("label", _STR, True),
        ("score", _FLOAT, True),
        ("cut", _INT, True),  # tokens cut off so that the rest fits the model; null: none
        ("pixels", pa.binary(), True),  # [H, W, C] uint8, rows first
        (
            "decoder_input_ids",
            pa.list_(pa.int32()),
            True,
        ),  # of encoder-decoders: the answer so far, without start token
    ],
)


def relevance_schema(dtype: pa.DataType) -> pa.Schema:
    """Relevance of tokens of one cell; `dtype` is float64 for models run in double precision, float32 otherwise."""
    return _schema(
        "relevance",
        4,
        [
            ("sample_id", _STR, False),
            ("explanation", _STR, False),  # contrastive | target | log_prob | none
            ("embedding", _STR, False),  # full | partial | none
            ("relevance", pa.list_(dtype), False),  # [T], unpadded
            ("explained", _FLOAT, False),
            ("residual", _FLOAT, True),  # sum of relevance minus explained; null where a method promises no sum
            ("logit_target", _FLOAT, False),
            ("logit_foil", _FLOAT, True),
            ("predicted_id", _INT, True),  # the model's own prediction, where that is explained (version 2)
            ("pixels", pa.list_(dtype), True),  # [H * W] of an image, of methods that reach its pixels (version 3)
            # [U] of an encoder-decoder, of methods that speak of it: the start token, then the view's
            # `decoder_input_ids` (version 4)
            ("decoder_relevance", pa.list_(dtype), True),
        ],
    )


RELEVANCE = relevance_schema(pa.float32())
RELEVANCE_DOUBLE = relevance_schema(pa.float64())

#: Pooled head relevance, [L * H] with the layer as the slow index.
HEADS = _schema(
    "heads",
    1,
    [
        ("sample_id", _STR, False),
        ("explanation", _STR, False),
        ("pooling", _STR, False),  # relu_dim | relu_token | none
        ("relevance", pa.list_(pa.float32()), False),
    ],
)

#: The most relevant neurons of each sample, at most 50, in descending order of the sum over positions, and what crosses
#: each layer boundary. Layers are counted from 0, the lowest, as neurons are; in a layer with experts the numbers of
#: neurons go on from one expert to the next, and `name` says which it is (version 3).
NEURONS = _schema(
    "neurons",
    3,
    [
        ("sample_id", _STR, False),
        ("explanation", _STR, False),
        ("layer", pa.list_(pa.int32()), False),
        ("neuron", pa.list_(pa.int32()), False),
        ("name", pa.list_(_STR), False),  # LAYER.NEURON, LAYER.EXPERT.NEURON
        ("relevance", pa.list_(pa.float32()), False),
        ("position", pa.list_(pa.int32()), False),  # where the neuron's absolute relevance is largest
        ("activation", pa.list_(pa.float32()), False),  # there
        ("layer_relevance", pa.list_(pa.float32()), False),  # [L], of all neurons of each layer
        # Where a method promises a sum: below and above the blocks [L + 1], the largest of a token there, by magnitude
        # (version 2), and what each block keeps [L], routers where there are experts (version 3).
        ("boundaries", pa.list_(pa.float32()), True),
        ("peaks", pa.list_(_FLOAT), True),
        ("kept_by_biases", pa.list_(pa.float32()), True),
        ("kept_by_attention", pa.list_(pa.float32()), True),
        ("kept_by_router", pa.list_(pa.float32()), True),
    ],
)

#: The explained number of one sample without the first neurons of a ranking, which are zero at all positions;
#: partitioned by model, task, dtype and what ranks: a method, or `random` or `activation`.
KNOCKOUTS = _schema(
    "knockouts",
    1,
    [
        ("sample_id", _STR, False),
        ("explanation", _STR, False),
        ("ranking", _STR, False),
        ("removed", pa.list_(pa.int32()), False),  # how many neurons are gone, from 0
        ("explained", pa.list_(pa.float32()), False),  # NaN where logits are not finite
    ],
)

#: What the neurons that a run keeps write to the vocabulary, their value vectors times the unembedding, and the tokens
#: nearest to their keys, by cosine; partitioned by model and dtype. The first of a list is the farthest out.
WRITINGS = _schema(
    "writings",
    1,
    [
        ("layer", _INT, False),
        ("neuron", _INT, False),
        ("promoted", pa.list_(_STR), False),
        ("promoted_logit", pa.list_(pa.float32()), False),  # for each unit of activation
        ("suppressed", pa.list_(_STR), False),
        ("suppressed_logit", pa.list_(pa.float32()), False),
        ("entropy", _FLOAT, False),  # of the softmax over the vocabulary, in nats
        ("key", pa.list_(_STR), False),  # none where tokens are embedded in another width than that of the layers
        ("key_cosine", pa.list_(pa.float32()), False),
    ],
)

#: The contexts of a corpus in which each neuron is most active, a shard a layer, in order of layer, neuron and rank;
#: partitioned by model, corpus and dtype. A context is a text, or so many tokens of it.
CONTEXTS = _schema(
    "contexts",
    1,
    [
        ("layer", _INT, False),
        ("neuron", _INT, False),
        ("rank", _INT, False),  # from 1; of equal activations the earlier context comes first
        ("activation", _FLOAT, False),  # the largest over the positions of ordinary tokens
        ("position", _INT, False),  # where in `input_ids`
        ("input_ids", pa.list_(pa.int32()), False),  # with what the tokenizer's template adds
        ("text", _STR, False),  # of the context
        ("number", pa.int64(), False),  # of the text in the corpus, from 0
        ("start", _INT, False),  # of the context in that text, in characters
        ("place", _STR, False),  # of that text: file:line or similar
    ],
)

#: What each neuron of a layer does over all ordinary tokens of a corpus; beside the contexts, in shards of their names.
ACTIVATIONS = _schema(
    "activations",
    1,
    [
        ("layer", _INT, False),
        ("neuron", _INT, False),
        ("tokens", pa.int64(), False),  # at which its activation is finite
        ("mean", _FLOAT, True),  # there; null where there is none
        ("histogram", pa.list_(pa.int64()), False),  # of them, between the `boundaries` that the manifest lists
    ],
)

#: Which tokens make a neuron active in its first contexts: relevance for its activation there, beside the contexts by
#: layer, neuron and rank; partitioned by model, corpus, dtype and method.
HEATMAPS = _schema(
    "heatmaps",
    1,
    [
        ("layer", _INT, False),
        ("neuron", _INT, False),
        ("rank", _INT, False),
        ("relevance", pa.list_(pa.float32()), True),  # of each of the context's `input_ids`; null where not finite
    ],
)

#: A unit of a corpus on its way into contexts and activations: what every neuron does there, and the contexts that it
#: names.
CONTEXTS_PART = _schema(
    "contexts_part",
    1,
    [
        ("layer", _INT, False),
        ("neuron", _INT, False),
        ("activation", pa.list_(_FLOAT), False),
        ("context", pa.list_(pa.int32()), False),  # numbers within the unit
        ("position", pa.list_(pa.int32()), False),
        ("total", _FLOAT, False),
        ("histogram", pa.list_(pa.int64()), False),
        ("contexts", pa.int64(), False),  # of the unit
        ("tokens", pa.int64(), False),  # of the unit, ordinary ones
        ("without_tokens", pa.int64(), False),  # texts of the unit that have none
    ],
)
CONTEXTS_TEXTS = _schema(
    "contexts_texts",
    1,
    [
        ("context", _INT, False),
        ("input_ids", pa.list_(pa.int32()), False),
        ("text", _STR, False),
        ("number", pa.int64(), False),
        ("start", _INT, False),
        ("place", _STR, False),
    ],
)

#: What each layer of a model says of the tokens, [T] a row; layers are counted from 1, the lowest.
LAYERS = _schema(
    "layers",
    1,
    [
        ("sample_id", _STR, False),
        ("explanation", _STR, False),
        ("embedding", _STR, False),
        ("layer", _INT, False),
        ("relevance", pa.list_(pa.float32()), False),
        ("logit_target", _FLOAT, False),
        ("logit_foil", _FLOAT, True),
        ("predicted_id", _INT, True),  # the model's own prediction, where that is explained
    ],
)

#: Relevance for every label of a classifier, a row a label; beside `relevance`, which is for the one that it predicts.
LABELS = _schema(
    "labels",
    1,
    [
        ("sample_id", _STR, False),
        ("embedding", _STR, False),
        ("label_id", _INT, False),  # of the model's outputs
        ("relevance", pa.list_(pa.float32()), False),  # [T], unpadded
        ("explained", _FLOAT, False),  # the label's logit
        ("residual", _FLOAT, True),  # sum of relevance minus explained; null where a method promises no sum
        ("predicted_id", _INT, True),  # the label that the model predicts; null where the sample has a target
        ("pixels", pa.list_(pa.float32()), True),  # [H * W] of an image, of methods that reach its pixels
    ],
)

#: What a batch cost. `method` names the pass (one pass serves several methods); planner columns are null outside ALTI.
RUNTIME = _schema(
    "runtime",
    1,
    [
        ("batch_id", _STR, False),
        ("method", _STR, False),
        ("stage", _STR, False),  # forward | backward | aggregate | method
        ("length", _INT, False),  # padded length of the batch, tokens
        ("batch", _INT, False),  # samples in the batch
        ("wall_s", _FLOAT, False),
        ("peak_bytes", pa.int64(), True),
        ("planned_bytes", pa.int64(), True),
        ("chunk", _INT, True),
        ("device", _STR, False),
    ],
)

_VARIANT = [
    ("model", _STR, False),
    ("task", _STR, False),
    ("dtype", _STR, False),
    ("method", _STR, False),
    ("explanation", _STR, False),
    ("embedding", _STR, False),
    ("tokens", _STR, False),  # non_special | all
    ("scope", _STR, False),  # context | full
]

#: One number per variant and metric, in percent over `n` correctly predicted samples.
SCORES = _schema(
    "scores",
    1,
    [*_VARIANT, ("metric", _STR, False), ("value", _FLOAT, True), ("n", pa.int64(), False)],
)


#: One number per variant, layer and metric; those that NormXLogit holds layers against evidence by.
LAYER_SCORES = _schema(
    "layer_scores",
    1,
    [
        *_VARIANT,
        ("layer", _INT, False),
        ("metric", _STR, False),
        ("value", _FLOAT, True),
        ("n", pa.int64(), False),
    ],
)


def layer_scores_samples_schema(metrics: Iterable[str]) -> pa.Schema:
    """One layer of a sample under one variant, with a column for each of `metrics`."""
    columns = [("sample_id", _STR, False), ("correct", _BOOL, False), *[(name, pa.float32(), True) for name in metrics]]
    return _schema("layer_scores_samples", 1, [*_VARIANT, ("layer", _INT, False), *columns])


#: What every file of them has, whatever metrics there were; the input of intervals and paired tests.
LAYER_SCORES_SAMPLES = layer_scores_samples_schema(())


def scores_samples_schema(metrics: Iterable[str]) -> pa.Schema:
    """One sample under one variant, with a column for each of `metrics`: null where one does not apply to the task."""
    return _schema(
        "scores_samples",
        2,
        [
            *_VARIANT,
            ("sample_id", _STR, False),
            ("correct", _BOOL, False),
            *[(metric, pa.float32(), True) for metric in metrics],
        ],
    )


#: What every file of them has, whatever metrics there were; the input of intervals and paired tests.
SCORES_SAMPLES = scores_samples_schema(())

#: One point of a pruning curve; partitioned by model, task and dtype. `pruned_heads` are those removed at this step
#: (layer * H + head); `area` is that under the whole curve, accuracy against the share of heads removed.
PRUNING = _schema(
    "pruning",
    1,
    [
        ("method", _STR, False),
        ("pooling", _STR, False),
        ("order", _STR, False),  # least_first | most_first | random
        ("seed", _INT, True),
        ("step", _INT, False),
        ("pruned_heads", pa.list_(pa.int32()), False),
        ("accuracy", _FLOAT, False),
        ("n", pa.int64(), False),
        ("area", _FLOAT, False),
    ],
)

#: A curve of one sample as its tokens go; partitioned by model, task, dtype and method. Lists have an entry for each
#: state; values are NaN (`correct` null) where relevance or logits are not finite. Of two kinds (version 2): areas, as
#: tokens go one after the other, and shares, where first no token is gone, then the shares of tokens in `percent`.
CURVES = _schema(
    "curves",
    2,
    [
        ("sample_id", _STR, False),
        ("explanation", _STR, False),
        ("embedding", _STR, False),
        ("perturbation", _STR, False),  # zero | mask | delete
        # Areas: morf, the most relevant token goes first | lerf, the same order reversed.
        # Shares: without_top, so many of the most relevant tokens are gone | top_only, all others are.
        ("order", _STR, False),
        ("target_id", _INT, False),  # the token or label whose logit is followed
        ("percent", pa.list_(pa.int32()), True),  # of the tokens that may go; null for areas
        ("removed", pa.list_(pa.int32()), False),  # how many tokens are gone; of areas, from 0 to all that may go
        ("logit", pa.list_(pa.float32()), False),
        ("probability", pa.list_(pa.float32()), True),  # null for a score
        # Target above foil or, without a foil, above every other token; with a gold label, that above every other.
        ("correct", pa.list_(_BOOL), True),  # null for a score
        ("area", _FLOAT, True),  # under the logit, over the share of tokens that are gone; null for shares
    ],
)

#: The areas of one sample's curves under every trial of a method: sets of options, in the order of the manifest, that a
#: choice is made among; partitioned by model, task, dtype and method. NaN where a trial has no finite curves.
TRIALS = _schema(
    "trials",
    1,
    [
        ("sample_id", _STR, False),
        ("area_morf", pa.list_(_FLOAT), False),
        ("area_lerf", pa.list_(_FLOAT), False),
    ],
)

#: One measured number or promised ratio of `closelook bench NAME`, in `bench/NAME/`. A ratio has a `target`; a file's
#: metadata hold its time, the command and the versions of packages.
BENCH = _schema(
    "bench",
    1,
    [
        ("bench", _STR, False),
        ("device", _STR, False),
        ("part", _STR, False),  # of the benchmark; "ratio" for what is promised
        ("model", _STR, True),  # by its name in the config; random/<geometry> for random weights
        ("task", _STR, True),
        ("dtype", _STR, True),
        ("method", _STR, True),  # or another way of doing what is measured
        ("length", _INT, True),  # tokens
        ("measure", _STR, False),
        ("value", _FLOAT, False),  # the median where there are quartiles
        ("unit", _STR, True),
        ("q1", _FLOAT, True),
        ("q3", _FLOAT, True),
        ("n", pa.int64(), True),  # values behind the median
        ("target", _FLOAT, True),
        ("better", _STR, True),  # lower | higher
        ("details", _STR, False),  # what else was said of it, JSON
    ],
)

SCHEMAS = {
    schema.metadata[NAME_KEY].decode(): schema
    for schema in (
        GENERIC,
        REJECT,
        VIEW,
        RELEVANCE,
        HEADS,
        LAYERS,
        LABELS,
        NEURONS,
        RUNTIME,
        SCORES,
        LAYER_SCORES,
        LAYER_SCORES_SAMPLES,
        SCORES_SAMPLES,
        PRUNING,
        CURVES,
        KNOCKOUTS,
        WRITINGS,
        CONTEXTS,
        HEATMAPS,
        ACTIVATIONS,
        CONTEXTS_PART,
        CONTEXTS_TEXTS,
        TRIALS,
        BENCH,
    )
}


def titled(schema: pa.Schema) -> str:
    """Name and version."""
    metadata = schema.metadata or {}
    return f"{metadata.get(NAME_KEY, b'unnamed').decode()} v{metadata.get(VERSION_KEY, b'?').decode()}"


def check(read: pa.Schema, expected: pa.Schema, where: str) -> None:
    """Raises SchemaMismatch unless `read`, from the file `where`, is `expected` in name, version and columns."""

    if titled(read) != titled(expected):
        raise SchemaMismatch(f"{where} holds schema {titled(read)}, this version of closelook reads {titled(expected)}")
    missing = [name for name in expected.names if name not in read.names]
    if missing:
        raise SchemaMismatch(f"{where} ({titled(read)}) lacks the columns {', '.join(missing)}")
