"""Schemas of explained texts as tidy rows, by word and by token: what `explain-file` and `export --relevance` write."""

from evaluation.schema.versioned import Long, versioned


class Word:
    """Relevance of a word of a text under one method: the sum over its tokens, or their mean.

    `at` numbers the words of each `side` of a text, from 0; special tokens are words of their own. All rows of a text
    and method repeat what is explained.
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
    start: int | None  # [start, end) in characters of the text; null for a word that is not in it
    end: int | None
    word: str
    special: bool  # True for a token that the tokenizer's template added
    tokens: int  # number of tokens of the word
    summed: bool  # True: relevance is the sum over the word's tokens; False: their mean, the method does not conserve
    relevance: float


WORDS = versioned("words", 1, Word)


class Token:
    """Relevance of a token of a text under one method; columns as of words, `word_at` is the word it is part of."""

    id: str
    row: Long | None
    model: str
    task: str | None
    method: str
    explanation: str
    embedding: str
    decision: str | None
    against: str | None
    probability: float | None
    explained: float
    side: str
    at: int
    start: int | None
    end: int | None
    token: str  # the first of a word includes the space before it
    special: bool
    word_at: int
    relevance: float


TOKENS = versioned("tokens", 1, Token)
