"""Blocks: samples with equally many tokens and equally many evidence tokens, as rows of one array.

Shapes: N samples, S their tokens one sample after the other, B rows of a block, T tokens, G evidence tokens of a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

BLOCK_TOKENS = 1 << 16  # a block and its temporary arrays fit into a core's cache


class Largest(NamedTuple):
    """The k tokens of largest relevance in each row; every field is [B].

    All tokens above `value` are selected. Of the `tied` tokens that equal it, `places` are selected; every such choice
    is equally likely.
    """

    value: np.ndarray  # the k-th largest relevance
    tied: np.ndarray  # tokens with this relevance
    places: np.ndarray  # how many tied tokens are selected, between 1 and `tied`
    evidence_above: np.ndarray  # evidence tokens above `value`
    evidence_tied: np.ndarray  # evidence tokens among the tied ones


@dataclass(frozen=True)
class Block:
    """Samples as rows, with the quantities that several metrics share, computed when they are first needed."""

    relevance: np.ndarray  # [B, T] of the chosen tokens
    evidence: np.ndarray  # [B, T] bool, G of them True in each row

    @cached_property
    def count(self) -> np.ndarray:
        """[B] chosen tokens of each row, T."""
        return np.full(len(self.relevance), self.relevance.shape[1])

    @cached_property
    def size(self) -> np.ndarray:
        """[B] evidence tokens of each row, G."""
        return self.evidence.sum(axis=1)

    @cached_property
    def positive(self) -> np.ndarray:
        """[B, T] bool, True where relevance is positive."""
        return self.relevance > 0

    @cached_property
    def ascending(self) -> np.ndarray:
        """[B, T] relevance of each row in ascending order."""
        return np.sort(self.relevance, axis=1)

    @cached_property
    def evidence_values(self) -> np.ndarray:
        """[B, G] the relevance of the evidence tokens; G is at least 1."""
        return self.relevance[self.evidence].reshape(len(self.relevance), -1)

    @cached_property
    def best_evidence(self) -> np.ndarray:
        """[B, 1] the largest relevance on evidence."""
        return self.evidence_values.max(axis=1, keepdims=True)

    @cached_property
    def strict_rank(self) -> np.ndarray:
        """[B] the rank of the best evidence token: one more than the number of tokens above it."""
        return 1 + (self.relevance > self.best_evidence).sum(axis=1)

    def largest(self, size: np.ndarray) -> Largest:
        """The `size` [B] tokens of largest relevance in each row; `size` is between 1 and T."""
        value = np.take_along_axis(self.ascending, (self.count - size)[:, None], axis=1)
        above, tied = self.relevance > value, self.relevance == value
        evidence_above, evidence_tied = ((marks & self.evidence).sum(axis=1) for marks in (above, tied))
        return Largest(value[:, 0], tied.sum(axis=1), size - above.sum(axis=1), evidence_above, evidence_tied)


def blocks(
    relevance: np.ndarray, evidence: np.ndarray, counts: np.ndarray, sizes: np.ndarray, samples: np.ndarray
) -> Iterator[tuple[np.ndarray, Block]]:
    """Yield the blocks of `samples` (sample numbers), each with the numbers of its samples [B].

    `relevance` [S] and `evidence` [S] are of the chosen tokens of all N samples, of which each has `counts` [N], and
    `sizes` [N] of evidence.
    """
    starts = np.cumsum(counts) - counts
    samples = samples[np.lexsort((sizes[samples], counts[samples]))]
    is_new = np.diff(counts[samples]).astype(bool) | np.diff(sizes[samples]).astype(bool)
    for alike in np.split(samples, np.flatnonzero(is_new) + 1):
        length = int(counts[alike[0]])
        rows = max(1, BLOCK_TOKENS // max(1, length))
        for start in range(0, len(alike), rows):
            chosen = alike[start : start + rows]
            tokens = starts[chosen][:, None] + np.arange(length)
            yield chosen, Block(relevance[tokens], evidence[tokens])
