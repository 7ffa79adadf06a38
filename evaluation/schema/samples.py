"""Schemas of samples, of their views by tokenizer, and of rows that were left out."""

from evaluation.schema.versioned import versioned


class Generic:
    """Model-independent samples.

    `slot` is the character offset in `text` where the target word goes; a text that a model is to go on with has
    neither (version 2). A text that has a label or a score has that instead, and where it is one of a pair, the
    `second` text; `evidence` and `scope` are of `text` (version 3). A picture has the bytes of its file as `image`,
    in `text` where it is from, and as evidence `regions` of its pixels (version 4). `meta` is JSON.
    """

    sample_id: str
    source: str
    text: str
    slot: int | None
    target: str | None
    foil: str | None
    second: str | None
    label: str | None  # by its name in the task
    score: float | None
    evidence: list[list[int]]  # [[start, end), ...] in characters of `text`
    scope: list[list[int]] | None
    meta: str
    image: bytes | None  # PNG, JPEG, WebP or BMP
    regions: list[list[int]] | None  # [[top, left, bottom, right), ...] in pixels of the image; null: nobody marked any
    cluster: str | None  # of samples that are alike, as of one article or template (version 5); null: no other is


GENERIC = versioned("generic", 5, Generic)


class Reject:
    """A row that was left out, and why.

    By `stage` "source" (`where` is file:line), "annotate", or "view" where a text is tokenised.
    """

    sample_id: str | None
    stage: str
    reason: str
    where: str | None
    detail: str | None


REJECT = versioned("reject", 1, Reject)


class View:
    """Samples as one tokenizer sees them.

    Lists have `length` entries; `position` is where the model predicts. A causal model's input ends with the tokens
    that target and foil begin with alike, such as a space of its own (version 2). `target_id` is null where the
    model's own prediction is explained, `evidence_mask` for tasks without evidence (3). Of pairs, `token_type_ids`
    tell the texts apart, where the tokenizer does; `label` and `score` are the samples' (4). Of a picture, tokens are
    the class token and the patches row by row, all with id 0, and `pixels` are what the model sees, resized and
    cropped, before its numbers are rescaled and normalised (5).
    """

    sample_id: str
    input_ids: list[int]
    position: int
    target_id: int | None
    foil_id: int | None
    evidence_mask: list[bool] | None
    special_mask: list[bool]
    scope_mask: list[bool] | None
    length: int
    token_type_ids: list[int] | None
    label: str | None
    score: float | None
    cut: int | None  # tokens cut off so that the rest fits the model; null: none
    pixels: bytes | None  # [H, W, C] uint8, rows first
    decoder_input_ids: list[int] | None  # of encoder-decoders: the answer so far, without its start


VIEW = versioned("view", 6, View)


class AnswerView(View):
    """Views of samples whose answer is explained as a whole: readable as views, with further columns.

    Tokens of the answer but the last stand behind those of the prompt, or in `decoder_input_ids`; `position` and
    `target_id` are those of the last. Units are the parts of the prompt that stay or go together.
    """

    answer_ids: list[int] | None  # [G]
    units: list[int] | None  # [T] the unit of each token, -1 for none
    unit_spans: list[list[int]] | None  # [n] of [start, end) in characters of `prompt`
    unit_evidence: list[bool] | None  # [n]; null: nobody marked any
    prompt: str | None
    turns: str | None  # of a chat: JSON of [role, start, end] of each message in `prompt`
    answer: str | None
    answer_spans: list[list[int]] | None  # sentences of the answer, [start, end) in its characters
    answer_parts: list[int] | None  # [G] the sentence of each token, -1 for none


#: Raised when what these columns hold changes: views of answers are then made again, and no others.
ANSWERS_VERSION = 1
ANSWER_VIEW = versioned("view", 6, AnswerView)
