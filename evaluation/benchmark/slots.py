"""Which token a model predicts in the slot: the target and the foil in place, as the tokenizer splits them there.

Tokenizers split at white space, so the neighbouring words are all the context that a word in the slot needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase

from evaluation.benchmark.encoding import Encoding, encode
from evaluation.benchmark.samples import Filled, Malformed, Row


class Place(NamedTuple):
    """A word between its neighbours."""

    text: str
    left: int  # where the left neighbour ends
    start: int
    end: int


def predicted(
    rows: Sequence[Row], tokenizer: PreTrainedTokenizerBase, masked: bool
) -> list[tuple[int, int | None] | Malformed]:
    """(target id, foil id) of each row, or why there is none. The foil id is None where the row has no foil.

    A row with a scope is a question, its target and foil are whole answers: their first tokens count. Otherwise each
    must be one token.
    """
    places = [[place(row, word, masked) for word in (row["target"], row["foil"]) if word is not None] for row in rows]
    distinct = list(dict.fromkeys(found for pair in places for found in pair))
    encodings = encode(tokenizer, [found.text for found in distinct], template=False)
    encoded = dict(zip(distinct, encodings, strict=True))
    results: list[tuple[int, int | None] | Malformed] = []
    for row, pair in zip(rows, places, strict=True):
        try:
            ids = [_token(found, encoded[found], row["scope"] is not None, tokenizer) for found in pair]
            if len(set(ids)) < len(ids):
                raise Malformed("target and foil have the same token", f"{row['target']!r}, {row['foil']!r}")
            results.append((ids[0], ids[1] if len(ids) > 1 else None))
        except Malformed as error:
            results.append(error)
    return results


def place(row: Row, word: str, masked: bool) -> Place:
    """`word` in the row's slot, a space before it. Causal models read nothing after it."""
    before, after = row["text"][: row["slot"]], row["text"][row["slot"] :]
    left = "".join(before.rsplit(maxsplit=1)[-1:]).strip()
    touching = masked and not after[:1].isspace()
    right = "".join(after.split(maxsplit=1)[:1]) if touching else ""
    filled = Filled.of(left + right, len(left), word.strip())
    return Place(filled.text, len(left), *filled.word)


def _token(found: Place, encoding: Encoding, is_answer: bool, tokenizer: PreTrainedTokenizerBase) -> int:
    """Raises Malformed."""
    word = repr(found.text[found.start : found.end])
    tokens = encoding.covers([(found.start, found.end)]).nonzero()[0]  # indices
    if not len(tokens):
        raise Malformed("target or foil has no token", word)
    if len(tokens) > 1 and not is_answer:
        raise Malformed("target or foil is not one token", f"{word} has {len(tokens)}")
    start, end = encoding.offsets[tokens[0]]
    if start < found.left or (end > found.end and not is_answer):
        raise Malformed("target or foil shares a token with its neighbour", word)
    token = encoding.ids[tokens[0]]
    if token == tokenizer.unk_token_id:
        raise Malformed("target or foil is unknown to the tokenizer", word)
    return token
