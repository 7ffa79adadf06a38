"""Many samples as padded rows of similar length, and what several metrics need of them.

Shapes: N samples, S tokens of all samples one after the other, B rows of a block, T its longest row, E evidence tokens
of all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

BLOCK_TOKENS = 1 << 16  # padding included; a block and its temporaries fit a core's cache


@dataclass(frozen=True)
class Largest:
    """So many tokens of largest relevance, of each row [B]: those above a value, and places that equal tokens share."""

    value: np.ndarray  # of the last
    tied: np.ndarray  # tokens of that value
    places: np.ndarray  # for these, between 1 and `tied`: every choice of as many is as likely
    evidence_above: np.ndarray
    evidence_tied: np.ndarray  # among those of that value


class Block:
    """Padded rows of similar length, each with evidence, and what several metrics need of them."""

    def __init__(self, relevance: np.ndarray, count: np.ndarray, evidence_at: np.ndarray) -> None:
        """`evidence_at` [E]: where the evidence of all rows is in the flattened block, ascending; few tokens are."""
        self.relevance = relevance  # [B, T], -inf where a token is not chosen, and on padding
        self.count = count  # [B] chosen tokens of each row
        self.evidence: np.ndarray = np.zeros(relevance.shape, bool)  # [B, T], False there
        self.evidence.ravel()[evidence_at] = True
        self._evidence_at = evidence_at
        self.rows = np.arange(len(relevance))

    @cached_property
    def top(self) -> np.ndarray:
        """[B] where the largest relevance is; the first of several."""
        return self.relevance.argmax(axis=1)

    @cached_property
    def positive(self) -> np.ndarray:
        """[B, T] bool."""
        return self.relevance > 0

    @cached_property
    def best_evidence(self) -> np.ndarray:
        """[B, 1] the largest relevance on evidence."""
        return np.maximum.reduceat(self.relevance.ravel()[self._evidence_at], self._evidence_starts)[:, None]

    @cached_property
    def strict_rank(self) -> np.ndarray:
        """[B] of the best evidence token: one more than the tokens above it."""
        return 1 + row_count(self.relevance > self.best_evidence)

    @cached_property
    def ascending(self) -> np.ndarray:
        """[B, T] relevance of each row, sorted; what is not chosen first."""
        return np.sort(self.relevance, axis=1)

    # of the evidence tokens E of all rows

    @cached_property
    def size(self) -> np.ndarray:
        """[B] evidence tokens of each row."""
        return np.diff(np.append(self._evidence_starts, len(self._evidence_at)))

    @cached_property
    def evidence_rows(self) -> np.ndarray:
        """[E] the row of each."""
        return np.repeat(self.rows, self.size)

    @cached_property
    def evidence_values(self) -> np.ndarray:
        """[E] the relevance of each."""
        return self.relevance.ravel()[self._evidence_at]

    @cached_property
    def above(self) -> np.ndarray:
        """[E] tokens of the row with larger relevance."""
        return self.relevance.shape[1] - self._place(np.less_equal)

    @cached_property
    def at_least(self) -> np.ndarray:
        """[E] tokens of the row with relevance as large or larger, itself included."""
        return self.relevance.shape[1] - self._place(np.less)

    def largest(self, size: np.ndarray) -> Largest:
        """The `size` [B] tokens of largest relevance of each row, no more than it has."""
        value = self.ascending[self.rows, self.relevance.shape[1] - size]
        above = row_count(self.relevance > value[:, None]).astype(int)
        tied = row_count(self.relevance == value[:, None]).astype(int)
        of_evidence = value[self.evidence_rows]
        evidence_above = self.evidence_total(self.evidence_values > of_evidence).astype(int)
        evidence_tied = self.evidence_total(self.evidence_values == of_evidence).astype(int)
        return Largest(value, tied, size - above, evidence_above, evidence_tied)

    def evidence_total(self, values: np.ndarray) -> np.ndarray:
        """[B] of `values` [E] over each row's evidence."""
        return np.add.reduceat(values, self._evidence_starts, dtype=np.float64)

    def _place(self, goes_on: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
        """[E] by bisection, how many of the row's sorted values are less than the token's, or less than or equal."""
        low = np.zeros(len(self.evidence_values), np.int64)
        high = np.full_like(low, self.relevance.shape[1])
        while (low < high).any():
            middle = (low + high) // 2
            inside = low < high
            value = self.ascending[self.evidence_rows, np.minimum(middle, self.relevance.shape[1] - 1)]
            right = inside & goes_on(value, self.evidence_values)
            low = np.where(right, middle + 1, low)
            high = np.where(inside & ~right, middle, high)
        return low

    def evidence_sum(self, values: np.ndarray) -> np.ndarray:
        """[B] of `values` [B, T] over evidence."""
        return np.add.reduceat(values.ravel()[self._evidence_at], self._evidence_starts)

    @cached_property
    def _evidence_starts(self) -> np.ndarray:
        """[B] where each row starts in E."""
        return np.searchsorted(self._evidence_at, self.rows * self.evidence.shape[1])


def row_count(marks: np.ndarray) -> np.ndarray:
    """[B] how many of `marks` [B, T] are set; a matrix product, which is faster than numpy's sums of booleans."""
    return marks.astype(np.float32) @ np.ones(marks.shape[1], np.float32)


def blocks(
    relevance: np.ndarray, evidence: np.ndarray, chosen: np.ndarray, offsets: np.ndarray, samples: np.ndarray
) -> Iterator[tuple[np.ndarray, Block]]:
    """(their numbers, padded block) for runs of `samples`; tokens that are not chosen have relevance -inf."""
    lengths = np.diff(offsets)
    if len(samples) < len(lengths) or (np.diff(lengths) > 0).any():
        # Longest first, as the store keeps them, so that a block holds similar lengths.
        samples = samples[np.argsort(-lengths[samples], kind="stable")]
        lengths = lengths[samples]
        before = np.cumsum(lengths) - lengths
        token = np.repeat(offsets[samples] - before, lengths) + np.arange(lengths.sum())
        relevance, evidence, chosen = relevance[token], evidence[token], chosen[token]
    evidence_at, others_at = np.flatnonzero(evidence), np.flatnonzero(~chosen)  # [E] and [O] in S; few tokens are
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
    """Rows of descending `lengths` that follow one another in `tokens`, padded by -inf: a copy a length."""
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
    """Rows of those of the tokens `at` that are in `part`, and where they are in the flattened block.

    `starts` are where the block's rows begin, `width` is its longest row.
    """
    own = at[slice(*np.searchsorted(at, (part.start, part.stop)))]
    row = np.searchsorted(starts, own, side="right") - 1
    return row, own - starts[row] + row * width
