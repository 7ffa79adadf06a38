"""Contexts: the texts of a corpus as tokens, cut into passages of at most so many tokens.

Each has the special tokens that its tokenizer's template adds, as models are used to read them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evaluation.benchmark.corpus import Entry

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LENGTH = 64  # tokens of a context by default


@dataclass(frozen=True)
class Piece:
    """A context: a passage of a text of the corpus."""

    ids: list[int]
    text: str
    entry: Entry
    start: int  # where the passage begins in the entry's text, in characters

    def row(self, number: int) -> dict[str, Any]:
        """The row of the schema of contexts; `number` is the number of the context."""
        columns = {"context": number, "input_ids": self.ids, "text": self.text, "start": self.start}
        return {**columns, "number": self.entry.number, "place": self.entry.where}


def pieces_of(tokenizer: PreTrainedTokenizerBase, entries: Sequence[Entry], length: int) -> Iterator[Piece]:
    """The contexts of `entries` in order, of at most `length` tokens each, special tokens included.

    A text without ordinary tokens has no context.
    """
    encoded = tokenizer(
        [entry.text for entry in entries],
        truncation=True,
        max_length=length,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        return_special_tokens_mask=True,
    )
    names = ("overflow_to_sample_mapping", "input_ids", "offset_mapping", "special_tokens_mask")
    for of, ids, offsets, special in zip(*(encoded[name] for name in names), strict=True):
        covered = [span for span, is_special in zip(offsets, special, strict=True) if not is_special]
        if covered:
            start, end = covered[0][0], covered[-1][1]
            yield Piece(ids, entries[of].text[start:end], entries[of], start)


def batches(lengths: Sequence[int], token_budget: int) -> Iterator[list[int]]:
    """Batches of contexts, as their indices in `lengths`, the longest first.

    A batch has at most `token_budget` tokens, padding included, but at least one context.
    """
    order = sorted(range(len(lengths)), key=lambda at: -lengths[at])
    start = 0
    while start < len(order):
        end = start + max(1, token_budget // lengths[order[start]])
        yield order[start:end]
        start = end


def template_of(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """The ids that the tokenizer's template adds to every text."""
    return frozenset(tokenizer("")["input_ids"])
