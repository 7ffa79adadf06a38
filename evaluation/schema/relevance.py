"""What methods say of a sample: of its tokens, and of attention heads, layers and labels."""

from __future__ import annotations

import pyarrow as pa

from evaluation.schema.versioned import FLOAT, INT, STR, versioned


def relevance_schema(dtype: pa.DataType) -> pa.Schema:
    """Relevance of tokens of one cell; `dtype` is float64 for models run in double precision, float32 otherwise."""
    return versioned(
        "relevance",
        4,
        [
            ("sample_id", STR, False),
            ("explanation", STR, False),  # contrastive | target | log_prob | none
            ("embedding", STR, False),  # full | partial | none
            ("relevance", pa.list_(dtype), False),  # [T], unpadded
            ("explained", FLOAT, False),
            ("residual", FLOAT, True),  # sum of relevance minus explained; null where a method promises no sum
            ("logit_target", FLOAT, False),
            ("logit_foil", FLOAT, True),
            ("predicted_id", INT, True),  # the model's own prediction, where that is explained (version 2)
            ("pixels", pa.list_(dtype), True),  # [H * W] of an image, of methods that reach its pixels (version 3)
            # [U] of an encoder-decoder, of methods that speak of it: the start token, then the view's
            # `decoder_input_ids` (version 4)
            ("decoder_relevance", pa.list_(dtype), True),
        ],
    )


RELEVANCE = relevance_schema(pa.float32())
RELEVANCE_DOUBLE = relevance_schema(pa.float64())

#: Pooled head relevance, [L * H] with the layer as the slow index.
HEADS = versioned(
    "heads",
    1,
    [
        ("sample_id", STR, False),
        ("explanation", STR, False),
        ("pooling", STR, False),  # relu_dim | relu_token | none
        ("relevance", pa.list_(pa.float32()), False),
    ],
)

#: What each layer of a model says of the tokens, [T] a row; layers are counted from 1, the lowest.
LAYERS = versioned(
    "layers",
    1,
    [
        ("sample_id", STR, False),
        ("explanation", STR, False),
        ("embedding", STR, False),
        ("layer", INT, False),
        ("relevance", pa.list_(pa.float32()), False),
        ("logit_target", FLOAT, False),
        ("logit_foil", FLOAT, True),
        ("predicted_id", INT, True),  # the model's own prediction, where that is explained
    ],
)

#: Relevance for every label of a classifier, a row a label; beside `relevance`, which is for the one that it predicts.
LABELS = versioned(
    "labels",
    1,
    [
        ("sample_id", STR, False),
        ("embedding", STR, False),
        ("label_id", INT, False),  # of the model's outputs
        ("relevance", pa.list_(pa.float32()), False),  # [T], unpadded
        ("explained", FLOAT, False),  # the label's logit
        ("residual", FLOAT, True),  # sum of relevance minus explained; null where a method promises no sum
        ("predicted_id", INT, True),  # the label that the model predicts; null where the sample has a target
        ("pixels", pa.list_(pa.float32()), True),  # [H * W] of an image, of methods that reach its pixels
    ],
)
