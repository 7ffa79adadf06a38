"""Schemas of samples, of their views by tokenizer, and of rows that were left out."""

from evaluation.schema.versioned import versioned


class Generic:
    """Samples as they are before any tokenizer.

    `slot` is the character offset in `text` at which the target word goes; a text that a model continues has neither
    slot nor target (version 2). A text with a gold label or score has this instead, and the first of a pair has the
    `second` text; `evidence` and `scope` are spans of `text` (version 3). An image has the bytes of its file as
    `image`, where it comes from as `text`, and `regions` of its pixels as evidence (version 4). `meta` is JSON.
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
    regions: list[list[int]] | None  # [[top, left, bottom, right), ...] in pixels of the image; null: no evidence
    cluster: str | None  # name shared by samples that are alike, as of an article (version 5); null: in no cluster


GENERIC = versioned("generic", 5, Generic)


class Reject:
    """A row that was left out, and why.

    `stage` is "source" (then `where` is file:line), "annotate", or "view", where texts are tokenised.
    """

    sample_id: str | None
    stage: str
    reason: str
    where: str | None
    detail: str | None


REJECT = versioned("reject", 1, Reject)


class View:
    """Samples as the tokens of one tokenizer.

    Lists have `length` entries; `position` is the readout position. A causal model's input ends with the tokens that
    target and foil share at their beginning, such as a space (version 2). `target_id` is null if the model's own
    prediction is explained, `evidence_mask` for tasks without evidence (3). `token_type_ids` tell the texts of a pair
    apart, if the tokenizer has them; `label` and `score` are those of the sample (4). The tokens of an image are the
    class token and the patches row by row, all with id 0, and `pixels` are what the model sees, resized and cropped,
    before numbers are rescaled and normalised (5).
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
    """Views of samples whose answer is explained as a whole: views with further columns.

    All tokens of the answer but the last follow those of the prompt, or are in `decoder_input_ids`; `position` and
    `target_id` belong to the last. Units are the parts of the prompt that are removed one by one.
    """

    answer_ids: list[int] | None  # [G]
    units: list[int] | None  # [T] the unit of each token, -1 for none
    unit_spans: list[list[int]] | None  # [n] of [start, end) in characters of `prompt`
    unit_evidence: list[bool] | None  # [n]; null: no evidence
    prompt: str | None
    turns: str | None  # of a chat: JSON of [role, start, end] of each message in `prompt`
    answer: str | None
    answer_spans: list[list[int]] | None  # sentences of the answer, [start, end) in its characters
    answer_parts: list[int] | None  # [G] the sentence of each token, -1 for none


#: Raised when the content of these columns changes: then only views of answers are made again.
ANSWERS_VERSION = 1
ANSWER_VIEW = versioned("view", 6, AnswerView)
