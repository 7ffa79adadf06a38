"""What is explained: samples, what a tokenizer makes of them, and what was left out on the way."""

from __future__ import annotations

import pyarrow as pa

from evaluation.schema.versioned import BOOL, FLOAT, INT, STR, versioned

_SPANS = pa.list_(pa.list_(pa.int32()))  # [[start, end), ...] in characters of `text`

#: Model-independent samples. `slot` is the character offset in `text` where the target word goes; a text that a model
#: is to go on with has neither (version 2). A text that has a label or a score has that instead, and where it is one of
#: a pair, the `second` text; `evidence` and `scope` are of `text` (version 3). A picture has the bytes of its file as
#: `image`, in `text` where it is from, and as evidence `regions` of its pixels (version 4). `meta` is JSON.
GENERIC = versioned(
    "generic",
    4,
    [
        ("sample_id", STR, False),
        ("source", STR, False),
        ("text", STR, False),
        ("slot", INT, True),
        ("target", STR, True),
        ("foil", STR, True),
        ("second", STR, True),
        ("label", STR, True),  # by its name in the task
        ("score", FLOAT, True),
        ("evidence", _SPANS, False),
        ("scope", _SPANS, True),
        ("meta", STR, False),
        ("image", pa.binary(), True),  # PNG, JPEG, WebP or BMP
        ("regions", _SPANS, True),  # [[top, left, bottom, right), ...] in pixels of the image; null: nobody marked any
    ],
)

#: Rows that were left out: by a source (`stage` "source", `where` file:line), an annotator ("annotate") or a tokeniser
#: ("view").
REJECT = versioned(
    "reject",
    1,
    [
        ("sample_id", STR, True),
        ("stage", STR, False),
        ("reason", STR, False),
        ("where", STR, True),
        ("detail", STR, True),
    ],
)

#: Samples as one tokenizer sees them. Lists have `length` entries; `position` is where the model predicts. A causal
#: model's input ends with the tokens that target and foil begin with alike, such as a space of its own (version 2).
#: `target_id` is null where the model's own prediction is explained, `evidence_mask` for tasks without evidence (3).
#: Of pairs, `token_type_ids` tell the texts apart, where the tokenizer does; `label` and `score` are the samples' (4).
#: Of a picture, tokens are the class token and the patches row by row, all with id 0, and `pixels` are what the model
#: sees, resized and cropped, before its numbers are rescaled and normalised (5).
VIEW = versioned(
    "view",
    6,
    [
        ("sample_id", STR, False),
        ("input_ids", pa.list_(pa.int32()), False),
        ("position", INT, False),
        ("target_id", INT, True),
        ("foil_id", INT, True),
        ("evidence_mask", pa.list_(BOOL), True),
        ("special_mask", pa.list_(BOOL), False),
        ("scope_mask", pa.list_(BOOL), True),
        ("length", INT, False),
        ("token_type_ids", pa.list_(pa.int32()), True),
        ("label", STR, True),
        ("score", FLOAT, True),
        ("cut", INT, True),  # tokens cut off so that the rest fits the model; null: none
        ("pixels", pa.binary(), True),  # [H, W, C] uint8, rows first
        ("decoder_input_ids", pa.list_(pa.int32()), True),  # of encoder-decoders: the answer so far, without its start
    ],
)
