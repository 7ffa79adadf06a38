"""Blocks: samples of similar length as padded rows, with the quantities that several metrics share.

Shapes: N samples, S their tokens one sample after the other, B rows of a block, T the longest row, E evidence tokens of
all rows of a block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

BLOCK_TOKENS = 1 << 16  # padding included; a block and its temporary arrays fit into a core's cache


@dataclass(frozen=True)
class Largest:
    """The k tokens of largest relevance in each row; every field is [B].

    All tokens above `value` are selected. Of the `tied` tokens that equal it, `places` are selected; every such choice
    is equally likely.
    """

    value: np.ndarray  # the k-th largest relevance
    tied: np.ndarray  # tokens with this relevance
    places: np.ndarray  # how many tied tokens are selected, between 1 and `tied`
    evidence_above: np.ndarray  # evidence tokens above `value`
    evidence_tied: np.ndarray  # evidence tokens among the tied ones


class Block:
    """Padded rows of samples of similar length, with the quantities that several metrics share.

    Quantities are computed when a metric first asks for them. Sums and maxima over evidence need evidence in every row.
    """

    def __init__(self, relevance: np.ndarray, count: np.ndarray, evidence_at: np.ndarray) -> None:
        """`evidence_at` [E] are the ascending indices of evidence tokens in the flattened block [B * T]."""
        self.relevance = relevance  # [B, T], -inf on padding and for tokens that are not chosen
        self.count = count  # [B] chosen tokens of each row
        self.evidence: np.ndarray = np.zeros(relevance.shape, bool)  # [B, T], False for tokens that are not chosen
        self.evidence.ravel()[evidence_at] = True
        self._evidence_at = evidence_at
        self.rows = np.arange(len(relevance))

    @cached_property
    def top(self) -> np.ndarray:
        """[B] the index of the largest relevance; the first of several equal ones."""
        return self.relevance.argmax(axis=1)

    @cached_property
    def positive(self) -> np.ndarray:
        """[B, T] bool, True where relevance is positive."""
        return self.relevance > 0

    @cached_property
    def best_evidence(self) -> np.ndarray:
        """[B, 1] the largest relevance on evidence."""
        return np.maximum.reduceat(self.evidence_values, self._evidence_starts)[:, None]

    @cached_property
    def strict_rank(self) -> np.ndarray:
        """[B] the rank of the best evidence token: one more than the number of tokens above it."""
        return 1 + row_count(self.relevance > self.best_evidence)

    @cached_property
    def ascending(self) -> np.ndarray:
        """[B, T] relevance of each row in ascending order; padding and tokens that are not chosen come first."""
        return np.sort(self.relevance, axis=1)

    @cached_property
    def size(self) -> np.ndarray:
        """[B] evidence tokens of each row."""
        return np.diff(np.append(self._evidence_starts, len(self._evidence_at)))

    @cached_property
    def evidence_rows(self) -> np.ndarray:
        """[E] the row of each evidence token."""
        return np.repeat(self.rows, self.size)

    @cached_property
    def evidence_values(self) -> np.ndarray:
        """[E] the relevance of each evidence token."""
        return self.relevance.ravel()[self._evidence_at]

    @cached_property
    def at_least(self) -> np.ndarray:
        """[E] the number of tokens in the row whose relevance is at least the evidence token's, itself included.

        The number of smaller values is found by bisection.
        """
        width = self.relevance.shape[1]
        low = np.zeros(len(self.evidence_values), np.int64)
        high = np.full_like(low, width)
        while (low < high).any():
            middle, inside = (low + high) // 2, low < high
            value = self.ascending[self.evidence_rows, np.minimum(middle, width - 1)]
            is_smaller = value < self.evidence_values
            low = np.where(inside & is_smaller, middle + 1, low)
            high = np.where(inside & ~is_smaller, middle, high)
        return width - low

    def largest(self, size: np.ndarray) -> Largest:
        """The `size` [B] tokens of largest relevance in each row; `size` is between 1 and the row's chosen tokens."""
        value = self.ascending[self.rows, self.relevance.shape[1] - size]
        above = row_count(self.relevance > value[:, None]).astype(int)
        tied = row_count(self.relevance == value[:, None]).astype(int)
        threshold = value[self.evidence_rows]  # [E]
        evidence_above = self.evidence_total(self.evidence_values > threshold).astype(int)
        evidence_tied = self.evidence_total(self.evidence_values == threshold).astype(int)
        return Largest(value, tied, size - above, evidence_above, evidence_tied)

    def evidence_total(self, values: np.ndarray) -> np.ndarray:
        """[B] the sum of `values` [E] over each row's evidence tokens."""
        return np.add.reduceat(values, self._evidence_starts, dtype=np.float64)

    def evidence_sum(self, values: np.ndarray) -> np.ndarray:
        """[B] the sum of `values` [B, T] over each row's evidence tokens."""
        return np.add.reduceat(values.ravel()[self._evidence_at], self._evidence_starts)

    @cached_property
    def _evidence_starts(self) -> np.ndarray:
        """[B] the index of each row's first evidence token in [E]."""
        return np.searchsorted(self._evidence_at, self.rows * self.evidence.shape[1])


def row_count(marks: np.ndarray) -> np.ndarray:
    """[B] the number of True in each row of `marks` [B, T].

    It is computed as a matrix product, which is faster than numpy's sum of booleans.

    >>> row_count(np.array([[True, False, True], [False, False, False]])).tolist()
    [2.0, 0.0]
    """
    return marks.astype(np.float32) @ np.ones(marks.shape[1], np.float32)


def blocks(
    relevance: np.ndarray, evidence: np.ndarray, chosen: np.ndarray, offsets: np.ndarray, samples: np.ndarray
) -> Iterator[tuple[np.ndarray, Block]]:
    """Cuts `samples` (sample numbers) into blocks of similar length: (numbers of the block's samples [B], block).

    `relevance`, `evidence` and `chosen` are [S], `offsets` [N + 1] the bounds of the samples in S. Tokens that are not
    chosen get the relevance -inf.
    """
    lengths = np.diff(offsets)
    if len(samples) < len(lengths) or (np.diff(lengths) > 0).any():
        # Longest first, which is the order of the store, so that the samples of a block have similar lengths.
        samples = samples[np.argsort(-lengths[samples], kind="stable")]
        lengths = lengths[samples]
        before = np.cumsum(lengths) - lengths
        token = np.repeat(offsets[samples] - before, lengths) + np.arange(lengths.sum())
        relevance, evidence, chosen = relevance[token], evidence[token], chosen[token]
    evidence_at, others_at = np.flatnonzero(evidence), np.flatnonzero(~chosen)  # indices into S; both are few
    starts = np.cumsum(lengths) - lengths
    begin = 0
    while begin < len(samples):
        end = min(len(samples), begin + max(1, BLOCK_TOKENS // int(lengths[begin])))
        part = slice(starts[begin], starts[end - 1] + lengths[end - 1])
        padded = _padded(relevance[part], lengths[begin:end])
        _, inside = _in_block(evidence_at, part, starts[begin:end], padded.shape[1])
        rows, outside = _in_block(others_at, part, starts[begin:end], padded.shape[1])
        padded.ravel()[outside] = -np.inf
        count = lengths[begin:end] - np.bincount(rows, minlength=len(padded))
        yield samples[begin:end], Block(padded, count, inside)
        begin = end


def _padded(tokens: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Rows [B, T] of `tokens` [S], padded with -inf; rows follow one another in S and have descending `lengths` [B].

    Rows of equal length are copied at once.
    """
    block = np.empty((len(lengths), lengths[0]), tokens.dtype)
    row = token = 0
    for stop in (*(np.flatnonzero(np.diff(lengths)) + 1), len(lengths)):
        size = (stop - row, lengths[row])
        block[row:stop, : size[1]] = tokens[token : token + size[0] * size[1]].reshape(size)
        block[row:stop, size[1] :] = -np.inf
        token += size[0] * size[1]
        row = stop
    return block


def _in_block(at: np.ndarray, part: slice, starts: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """(rows, indices in the flattened block [B * width]) of those tokens `at` that lie in `part` of S.

    `starts` [B] are the first tokens of the block's rows, `width` is the length of its longest row.
    """
    inside = at[slice(*np.searchsorted(at, (part.start, part.stop)))]
    row = np.searchsorted(starts, inside, side="right") - 1
    return row, inside - starts[row] + row * width
