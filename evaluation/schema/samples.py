"""Schemas of samples, of their views by tokenizer, of rows that were left out, of ablated answers, and of tidy rows."""

from closelook.evaluation.schema.versioned import Long, versioned


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


class Ablations:
    """The numbers of a sample's answer after its ablated prompts, for each distinct mask.

    Partitioned by model, task, dtype and, as method, the way to ablate. M masks, n units, G tokens of the answer. A
    mask keeps some units of the prompt; sets of masks are lists of indices into `kept`.
    """

    sample_id: str
    kept: list[list[bool]]  # [M, n] True for units that stay
    logits: list[list[float]]  # [M, G] of each token of the answer
    log_odds: list[list[float]]  # [M, G] logit - logsumexp(other logits)
    full: int  # the mask that keeps all units
    without: list[int]  # [n] the masks without one unit, by unit
    fit: list[int]  # masks to fit methods to; a budget takes the first of them
    judge: list[int]  # masks to judge methods by
    swapped: bool  # True: all masks were run; methods are also fitted to `judge` and judged by `fit`, and averaged
    shapley: list[int]  # for Shapley values: no unit kept, one of each pair, then their complements; empty: not run
    shapley_weights: list[float]  # how often each pair was drawn
    random: list[list[int]]  # masks without random units, for each number of removed units in `random_gone`
    random_gone: list[int]


ABLATIONS = versioned("ablations", 1, Ablations)


class Sources:
    """Relevance of the units of a sample's prompt, with measures of how well it predicts the effect of removing them.

    A row for each sample, way, explanation and number of ablated prompts; partitioned by model, task, dtype and method.
    The ends of names tell what a measure is taken against: l the log-probability of the answer, f the sum of its
    logits, y its log-odds. Null: not defined (version 1).
    """

    sample_id: str
    way: str  # how units are ablated
    explanation: str  # target | log_prob, or none for methods without a choice
    ablated: int  # prompts that were run again for this relevance; 0 for relevance from tokens
    screened: bool  # True: leave-one-out for the units that the method finds most relevant, 0 for the others
    relevance: list[float]  # [n]
    lds_l: float | None
    lds_f: float | None
    infidelity_l: float | None
    infidelity_f: float | None
    drop_l: list[float]  # without the 1, 3 and 5 most relevant units; numbers below n only
    drop_f: list[float]
    drop_y: list[float]
    pg: float | None  # against evidence, over units
    mrr: float | None
    ap: float | None
    parts: list[list[float]] | None  # relevance for each sentence of the answer; only of samples in the report


SOURCES = versioned("sources", 1, Sources)


class Part:
    """A word or token of a text under one method.

    `at` numbers the parts of each `side` of a text, from 0. All rows of a text and method repeat what is explained.
    """

    id: str  # the user's, else the number of the row in the file; in a run the sample's
    row: Long | None  # number of the row, from 1, counted over all files; null in a run
    model: str
    task: str | None  # null outside of a run
    method: str
    explanation: str  # contrastive | target | log_prob | none
    embedding: str  # full | partial | none
    decision: str | None  # the explained label or word; null if the model predicts a score
    against: str | None  # the label or word that the decision is compared with
    probability: float | None  # of the decision; null if the model predicts a score, or a run did not keep it
    explained: float  # the explained number: a logit, a difference of two, a log-probability or a score
    side: str  # text | second | decoder
    at: int
    start: int | None  # [start, end) in characters of the text; null for a part that is not in it
    end: int | None


class Word(Part):
    """Relevance of a word of a text under one method: the sum over its tokens, or their mean.

    Special tokens are words of their own.
    """

    word: str
    special: bool  # True for a token that the tokenizer's template added
    tokens: int  # number of tokens of the word
    summed: bool  # True: relevance is the sum over the word's tokens; False: their mean, the method does not conserve
    relevance: float


WORDS = versioned("words", 1, Word)


class Token(Part):
    """Relevance of a token of a text under one method; `word_at` is the word that it is part of."""

    token: str  # the first of a word includes the space before it
    special: bool
    word_at: int
    relevance: float


TOKENS = versioned("tokens", 1, Token)
