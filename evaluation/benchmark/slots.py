"""The tokens of target and foil in the slot, as the tokenizer splits them in their text.

A causal model continues its text: the tokens of target and foil are those that the tokenizer adds when they follow the
text. Tokens that both begin with (a space, the first digits of two years) are read with the text, and the first tokens
that differ are explained; where the task's words are `single`, each word must be one token. A masked model fills its
slot with one token: of an answer of several words with that of the first word.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase

from closelook.evaluation.benchmark.encoding import Encoding, encode, has_spaces
from closelook.evaluation.benchmark.samples import Filled, Malformed, Prompt, Row, Words

NOT_ONE_TOKEN = "target or foil is not one token"


class Prediction(NamedTuple):
    """Token ids: those that target and foil share, read after the text, and the two that are compared.

    `foil` is None for a row without a foil.
    """

    shared: list[int]
    target: int
    foil: int | None


class Tail(NamedTuple):
    """The tokens that a word adds to those of the text before it."""

    word: str
    ids: list[int]
    pieces: list[str]  # the characters of each token
    blanks: int  # tokens of white space alone before the first that is not


def continuing(
    row: Row,
    prompt: Prompt,
    context: Encoding,
    tokenizer: PreTrainedTokenizerBase,
    counts: Words,
    template: bool = True,
) -> Prediction:
    """The tokens that a causal model predicts after a row's prompt.

    `context` is the encoding of the prompt, without special tokens at its end; `counts` are the task's words. Raises
    Malformed as `tail_behind` does, and for words that are not to be told apart.
    """
    words = [word.strip() for word in _words(row)]
    encodings = encode(tokenizer, [prompt.with_target(word) for word in words], template)
    tails = []
    for word, encoding in zip(words, encodings, strict=True):
        tails.append(tail_behind(prompt, word, context, encoding.open_ended(), tokenizer))
    return _first_difference(tails, single=counts == "single")


def answering(row: Row, tokenizer: PreTrainedTokenizerBase, counts: Words) -> Prediction:
    """The tokens that the decoder of an encoder-decoder predicts: those of target and foil, which follow no text."""
    nothing = Encoding([], np.zeros((0, 2), np.int32), np.zeros(0, bool))
    return continuing(row, Prompt("", ""), nothing, tokenizer, counts, template=False)


def _words(row: Row) -> list[str]:
    """The target, and the foil of a row that has one."""
    return [row[name] for name in ("target", "foil") if row[name] is not None]


def tail_behind(
    prompt: Prompt, word: str, context: Encoding, encoding: Encoding, tokenizer: PreTrainedTokenizerBase
) -> Tail:
    """The tokens that `word` adds to a prompt; `context` is the prompt encoded, `encoding` the prompt with the word.

    A tokenizer may split white space before a word otherwise than at the end of a text, as GPT-2 splits two line ends.
    The word is then tokenised after the prompt's last character alone. A word that follows without a space, but would
    then share a token with the prompt, follows with a space. Raises Malformed if the word shares a token with the
    prompt, has no token but white space, or is unknown to the tokenizer.
    """
    joint = prompt.with_target(word)
    if encoding.ids[: len(context)] != context.ids and prompt.text[-1:].isspace():
        prompt = Prompt(prompt.text[-1], prompt.space)
        joint = prompt.with_target(word)
        context, encoding = (encoding.open_ended() for encoding in encode(tokenizer, [prompt.text, joint]))
    goes_on = joint == prompt.text + word and not prompt.text[-1:].isspace()
    if encoding.ids[: len(context)] != context.ids and goes_on and has_spaces(tokenizer):
        joint = f"{prompt.text} {word}"
        encoding = encode(tokenizer, [joint])[0].open_ended()
    if encoding.ids[: len(context)] != context.ids:
        raise Malformed("target or foil shares a token with its neighbour", repr(word))
    ids = encoding.ids[len(context) :]
    pieces = [joint[start:end] for start, end in encoding.offsets[len(context) :]]
    blanks = next((index for index, piece in enumerate(pieces) if piece.strip()), len(pieces))
    if blanks == len(pieces):
        raise Malformed("target or foil has no token", repr(word))
    if ids[blanks] == tokenizer.unk_token_id:
        raise Malformed("target or foil is unknown to the tokenizer", repr(word))
    return Tail(word, ids, pieces, blanks)


def _first_difference(tails: Sequence[Tail], single: bool) -> Prediction:
    """The tokens that `tails`, of target and foil, share, and the first in which they differ."""
    if single:
        for tail in tails:
            if len(tail.ids) - tail.blanks > 1:
                raise _not_one_token(tail.word, tail.pieces[tail.blanks :])
    shared = _common([tail.ids for tail in tails]) if len(tails) > 1 else tails[0].blanks
    if any(len(tail.ids) == shared for tail in tails):
        raise Malformed("target or foil begins with the other", ", ".join(repr(tail.word) for tail in tails))
    for tail in tails:
        if single and tail.blanks > shared:
            detail = f"the space before {tail.word!r} is a token of its own, unlike that before the other word"
            raise Malformed(NOT_ONE_TOKEN, detail)
    first = [tail.ids[shared] for tail in tails]
    return Prediction(tails[0].ids[:shared], first[0], first[1] if len(first) > 1 else None)


def _common(lists: Sequence[list[int]]) -> int:
    """The number of entries with which all lists begin alike."""
    columns = zip(*lists, strict=False)
    return next((index for index, column in enumerate(columns) if len(set(column)) > 1), min(map(len, lists)))


def filling(row: Row, tokenizer: PreTrainedTokenizerBase, answers: bool) -> Prediction:
    """The tokens that a masked model predicts in a row's slot; `shared` is empty.

    If target and foil are `answers` of several words, the first word of each is predicted. Raises Malformed as `_token`
    does, and for words of the same token.
    """
    texts = [Filled.of(row["text"], row["slot"], word.strip()) for word in _words(row)]
    encodings = encode(tokenizer, [filled.text for filled in texts])
    ids = [_token(filled, encoding, answers, tokenizer) for filled, encoding in zip(texts, encodings, strict=True)]
    if len(set(ids)) < len(ids):
        raise Malformed("target and foil have the same token", f"{row['target']!r}, {row['foil']!r}")
    return Prediction([], ids[0], ids[1] if len(ids) > 1 else None)


def _token(filled: Filled, encoding: Encoding, is_answer: bool, tokenizer: PreTrainedTokenizerBase) -> int:
    """The id of the token of the word in a `filled` text's slot; of an answer, its first word's."""
    start, end = filled.word
    word = filled.text[start:end]
    if is_answer:  # its first word, without the punctuation behind it
        word = (re.match(r"\S*\w", word) or word.split())[0]
    tokens = encoding.covers([(start, start + len(word))]).nonzero()[0]  # indices
    if not len(tokens):
        raise Malformed("target or foil has no token", repr(word))
    if len(tokens) > 1:
        raise _not_one_token(word, [filled.text[low:high] for low, high in encoding.offsets[tokens]])
    low, high = encoding.offsets[tokens[0]]
    if low < len(filled.text[:start].rstrip()) or (high > end and not is_answer):
        raise Malformed("target or foil shares a token with its neighbour", repr(word))
    token = encoding.ids[tokens[0]]
    if token == tokenizer.unk_token_id:
        raise Malformed("target or foil is unknown to the tokenizer", repr(word))
    return token


def _not_one_token(word: str, pieces: Sequence[str]) -> Malformed:
    """The error of a `word` that the tokenizer splits into `pieces`."""
    return Malformed(NOT_ONE_TOKEN, f"{word!r} is split into {', '.join(map(repr, pieces))}")
