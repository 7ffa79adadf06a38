"""Texts as a fast tokenizer encodes them: token ids, the characters of each token, and which tokens are special."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from transformers import PreTrainedTokenizerBase

_CONTEXT = 8  # tokens before a token that may change its text, such as by a space
_PART_OF_CHARACTER = "\ufffd"  # what decoding gives for the first bytes of a character
_BYTES = 4  # of a character, at most


@dataclass(frozen=True)
class Encoding:
    """The tokens of a text. *Special* ones are those that the tokenizer's template added; they cover no characters."""

    ids: list[int]  # [T]
    offsets: np.ndarray  # [T, 2], [start, end) in characters
    special: np.ndarray  # [T] bool
    sequence: np.ndarray | None = None  # [T] of a pair: 0 or 1, which text a token is of; -1 of special tokens
    types: list[int] | None = None  # [T] of a pair: the token types, where the tokenizer has them

    def __len__(self) -> int:
        """The number of tokens T."""
        return len(self.ids)

    def open_ended(self) -> Encoding:
        """The encoding without special tokens after the last ordinary one, for models that continue a text."""
        ordinary = (~self.special).nonzero()[0]
        return self._only(np.arange(ordinary[-1] + 1 if len(ordinary) else 0))

    def without_second_opening(self) -> Encoding:
        """The encoding with its opening token once, where both the template and the text begin with it."""
        if len(self) < 2 or not self.special[0] or self.special[1] or self.ids[0] != self.ids[1]:
            return self
        return self._only(np.delete(np.arange(len(self)), 1))

    def _only(self, kept: np.ndarray) -> Encoding:
        """The encoding of the tokens at the indices `kept` alone."""
        sequence = None if self.sequence is None else self.sequence[kept]
        types = None if self.types is None else [self.types[index] for index in kept]
        return Encoding([self.ids[index] for index in kept], self.offsets[kept], self.special[kept], sequence, types)

    def covers(self, spans: Iterable[Sequence[int]], first: bool = False) -> np.ndarray:
        """The ordinary tokens that share a character with one of the spans, [T] bool; with `first` the first of each.

        Spans are of the first text of a pair.
        """
        ordinary = ~self.special & (True if self.sequence is None else self.sequence == 0)
        covered = np.zeros(len(self), dtype=bool)
        for start, end in spans:
            in_span = (np.maximum(self.offsets[:, 0], start) < np.minimum(self.offsets[:, 1], end)) & ordinary
            if first:
                in_span[in_span.argmax() + 1 :] = False
            covered |= in_span
        return covered

    def mask(self, spans: Iterable[Sequence[int]] | None, first: bool = False) -> list[bool] | None:
        """The result of `covers` as a list; None if `spans` is None."""
        return None if spans is None else self.covers(spans, first).tolist()


def encode(
    tokenizer: PreTrainedTokenizerBase,
    texts: list[str],
    template: bool = True,
    seconds: list[str] | None = None,
    max_length: int | None = None,
) -> list[Encoding]:
    """The encodings of `texts`, or of pairs with `seconds`; `template` adds the tokenizer's special tokens.

    A text of more than `max_length` tokens loses tokens at its end, of a pair the longer text; None cuts nothing. A
    text that begins with the token that the template puts first has this token once.
    """
    if not texts:
        return []
    typed = seconds is not None and "token_type_ids" in tokenizer.model_input_names
    batch = tokenizer(
        texts,
        seconds,
        add_special_tokens=template,
        truncation=False if max_length is None else "longest_first",
        max_length=max_length,
        return_offsets_mapping=True,
        return_special_tokens_mask=True,
        return_attention_mask=False,
        return_token_type_ids=typed,
        verbose=False,
    )
    encodings = []
    for index, ids in enumerate(batch["input_ids"]):
        offsets = np.array(batch["offset_mapping"][index], dtype=np.int32).reshape(-1, 2)
        encoding = Encoding(ids, offsets, np.array(batch["special_tokens_mask"][index], dtype=bool))
        if seconds is not None:
            sequence = np.array([-1 if number is None else number for number in batch.sequence_ids(index)])
            types = batch["token_type_ids"][index] if typed else None
            encoding = replace(encoding, sequence=sequence, types=types)
        encodings.append(encoding.without_second_opening())
    return encodings


def with_specials(encoding: Encoding, tokenizer: PreTrainedTokenizerBase) -> Encoding:
    """`encoding` with special tokens marked that stand in the text itself, as chat templates write them."""
    special = np.isin(encoding.ids, tokenizer.all_special_ids)
    return replace(encoding, special=special)


def encoding_of_ids(
    ids: Sequence[int], tokenizer: PreTrainedTokenizerBase, after: Sequence[int] = ()
) -> tuple[Encoding, str]:
    """(the encoding of tokens by their `ids`, the text that they spell after the tokens `after`); nothing is tokenised.

    Each token's text is what decoding gains by it. A character that several tokens spell together, byte by byte,
    belongs to each of them.
    """
    context = list(after[-_CONTEXT:])
    known, begin, end = [*context, *ids], 0, len(context)
    text, offsets = "", []
    for at in range(len(context), len(known)):
        spelt = _decoded(tokenizer, known[begin : at + 1])
        pending = at + 1 - end
        if spelt.endswith(_PART_OF_CHARACTER) and pending < _BYTES and at + 1 < len(known):
            continue
        piece = spelt[len(_decoded(tokenizer, known[begin:end])) :]
        offsets += [(len(text), len(text) + len(piece))] * pending
        text += piece
        begin, end = end, at + 1
    cover = np.array(offsets, dtype=np.int32).reshape(-1, 2)
    return with_specials(Encoding(list(ids), cover, np.zeros(len(ids), bool)), tokenizer), text


def _decoded(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """The text of tokens, special tokens included, with spaces as they are."""
    return str(tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))


def opening_of(tokenizer: PreTrainedTokenizerBase) -> str:
    """The special token with which a text may begin: the one that the template puts first, else BOS, else ""."""
    [encoding] = encode(tokenizer, ["a"])
    if not encoding.special[:1].any():
        return str(tokenizer.bos_token or "")
    return str(tokenizer.convert_ids_to_tokens(encoding.ids[0]))


def has_spaces(tokenizer: PreTrainedTokenizerBase) -> bool:
    """True if the tokenizer can write a space before a word; False where a space is an unknown character."""
    [encoding] = encode(tokenizer, [" "], template=False)
    return tokenizer.unk_token_id is None or tokenizer.unk_token_id not in encoding.ids
