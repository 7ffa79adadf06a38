"""Texts as a fast tokenizer encodes them: token ids, the characters of each token, and which tokens are special."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from transformers import PreTrainedTokenizerBase

_CONTEXT = 8  # tokens before others that may change how these are spelt
_PART_OF_CHARACTER = "\ufffd"  # what decoding gives for the first bytes of a character
_BYTES = 4  # of a character, at most


@dataclass(frozen=True)
class Encoding:
    """An encoded text. *Special* is what the tokenizer's template added; those tokens cover no characters."""

    ids: list[int]  # [T]
    offsets: np.ndarray  # [T, 2], [start, end) in characters
    special: np.ndarray  # [T] bool
    sequence: np.ndarray | None = None  # [T] of a pair: 0 or 1, which text a token is of; -1 of special tokens
    types: list[int] | None = None  # [T] of a pair: the token types, where the tokenizer has them

    def __len__(self) -> int:
        return len(self.ids)

    def open_ended(self) -> Encoding:
        """Without what the template adds behind the last ordinary token, for models that continue a text."""
        ordinary = (~self.special).nonzero()[0]
        return self._only(np.arange(ordinary[-1] + 1 if len(ordinary) else 0))

    def without_second_opening(self) -> Encoding:
        """Without the token that both the template and the text begin with, where they do: it is read once."""
        if len(self) < 2 or not self.special[0] or self.special[1] or self.ids[0] != self.ids[1]:
            return self
        return self._only(np.delete(np.arange(len(self)), 1))

    def _only(self, kept: np.ndarray) -> Encoding:
        """The tokens at these indices."""
        sequence = None if self.sequence is None else self.sequence[kept]
        types = None if self.types is None else [self.types[index] for index in kept]
        return Encoding([self.ids[index] for index in kept], self.offsets[kept], self.special[kept], sequence, types)

    def covers(self, spans: Iterable[Sequence[int]], first: bool = False) -> np.ndarray:
        """Ordinary tokens that share a character with one of the spans, or the `first` of each span's, [T] bool.

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
        """The same as a list; None without spans."""
        return None if spans is None else self.covers(spans, first).tolist()


def encode(
    tokenizer: PreTrainedTokenizerBase,
    texts: list[str],
    template: bool = True,
    seconds: list[str] | None = None,
    max_length: int | None = None,
) -> list[Encoding]:
    """Encodes a batch, with or without the tokenizer's template; with `seconds`, pairs of texts.

    At full length, or cut to `max_length` tokens: the longer text of a pair loses tokens at its end. A text that begins
    with the token that the template puts first gets no second one.
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
    """The encoding of a text that holds special tokens itself, as chat templates write them: they are special."""
    special = np.isin(encoding.ids, tokenizer.all_special_ids)
    return replace(encoding, special=special)


def encoding_of_ids(
    ids: Sequence[int], tokenizer: PreTrainedTokenizerBase, after: Sequence[int] = ()
) -> tuple[Encoding, str]:
    """Tokens by their ids, and the text that they spell behind the tokens `after`; nothing is tokenised.

    A character that several tokens spell together belongs to each of them.
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
    return str(tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))


def opening_of(tokenizer: PreTrainedTokenizerBase) -> str:
    """The token that a text may begin with although it is special: what the template puts first, else BOS; else ""."""
    [encoding] = encode(tokenizer, ["a"])
    if not encoding.special[:1].any():
        return str(tokenizer.bos_token or "")
    return str(tokenizer.convert_ids_to_tokens(encoding.ids[0]))


def has_spaces(tokenizer: PreTrainedTokenizerBase) -> bool:
    """True where words can be spelled with a space before them: not where a space is an unknown character."""
    [encoding] = encode(tokenizer, [" "], template=False)
    return tokenizer.unk_token_id is None or tokenizer.unk_token_id not in encoding.ids
