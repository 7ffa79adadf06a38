"""Contexts: the texts of a corpus as a tokenizer cuts them, each as a model of that tokenizer is used to read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evaluation.benchmark.corpus import Entry

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LENGTH = 64  # tokens of a context, where nobody says


@dataclass(frozen=True)
class Piece:
    """A context: a text, or so many tokens of it."""

    ids: list[int]
    text: str
    entry: Entry
    start: int  # in characters of the text of the entry

    def row(self, number: int) -> dict[str, Any]:
        columns = {"context": number, "input_ids": self.ids, "text": self.text, "start": self.start}
        return {**columns, "number": self.entry.number, "place": self.entry.where}


def pieces_of(tokenizer: PreTrainedTokenizerBase, entries: Sequence[Entry], length: int) -> Iterator[Piece]:
    """The contexts of texts, with at most `length` tokens each, including those of the tokenizer's template.

    A text without tokens has none.
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
    """Contexts of like lengths together, the longest first, in batches of at most so many tokens with padding."""
    order = sorted(range(len(lengths)), key=lambda at: -lengths[at])
    start = 0
    while start < len(order):
        end = start + max(1, token_budget // lengths[order[start]])
        yield order[start:end]
        start = end


def template_of(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """The ids that the tokenizer's template adds to every text."""
    return frozenset(tokenizer("")["input_ids"])
