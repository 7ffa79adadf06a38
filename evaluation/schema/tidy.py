"""Schemas of explained texts as tidy rows, by word and by token: what `explain-file` and `export --relevance` write."""

from evaluation.schema.versioned import Long, versioned


class Word:
    """Relevance of a word of a text under one method: the sum over its tokens, or their mean.

    Of a text, `at` counts its words on each `side`, from 0; special tokens are words of their own. All rows of a text
    and method repeat what is explained.
    """

    id: str  # the user's own, else the number of the row in the file, or in a run the sample's
    row: Long | None  # in the file, from 1; null of a run
    model: str
    task: str | None  # of a run
    method: str
    explanation: str  # contrastive | target | log_prob | none
    embedding: str  # full | partial | none
    decision: str | None  # the label or word that is explained; null of a score
    against: str | None  # the label or word that it is contrasted with
    probability: float | None  # of the decision; null of a score, and where a run did not keep it
    explained: float  # the explained number: a logit, a difference of two, a log-probability or a score
    side: str  # text | second | decoder
    at: int
    start: int | None  # [start, end) in characters of the text; null where the text has no such characters
    end: int | None
    word: str
    special: bool  # a token that the tokenizer's template added
    tokens: int  # of the word
    summed: bool  # relevance is the sum over the word's tokens; else their mean, as the method promises no sum
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
    token: str  # one that starts a word holds its leading space
    special: bool
    word_at: int
    relevance: float


TOKENS = versioned("tokens", 1, Token)
