"""What a fast tokenizer makes of a text: token ids, the characters each token covers, and which tokens are special."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Encoding:
    """An encoded text. *Special* is what the tokenizer's template added; those tokens cover no characters."""

    ids: list[int]  # [T]
    offsets: np.ndarray  # [T, 2], [start, end) in characters
    special: np.ndarray  # [T] bool

    def __len__(self) -> int:
        return len(self.ids)

    def open_ended(self) -> Encoding:
        """Without what the template adds behind the last ordinary token, for models that continue a text."""
        ordinary = (~self.special).nonzero()[0]
        length = int(ordinary[-1]) + 1 if len(ordinary) else 0
        return Encoding(self.ids[:length], self.offsets[:length], self.special[:length])

    def covers(self, spans: Iterable[Sequence[int]], first: bool = False) -> np.ndarray:
        """Ordinary tokens that share a character with one of the spans, or the `first` of each span's, [T] bool."""
        found = np.zeros(len(self), dtype=bool)
        for start, end in spans:
            own = (np.maximum(self.offsets[:, 0], start) < np.minimum(self.offsets[:, 1], end)) & ~self.special
            if first:
                own[own.argmax() + 1 :] = False
            found |= own
        return found


def encode(tokenizer: PreTrainedTokenizerBase, texts: list[str], template: bool = True) -> list[Encoding]:
    """Encodes a batch, with or without the tokenizer's template, at full length."""
    if not texts:
        return []
    batch = tokenizer(
        texts,
        add_special_tokens=template,
        truncation=False,
        return_offsets_mapping=True,
        return_special_tokens_mask=True,
        return_attention_mask=False,
        return_token_type_ids=False,
        verbose=False,
    )
    columns = zip(batch["input_ids"], batch["offset_mapping"], batch["special_tokens_mask"], strict=True)
    return [
        Encoding(ids, np.array(offsets, dtype=np.int32).reshape(-1, 2), np.array(special, dtype=bool))
        for ids, offsets, special in columns
    ]
