"""The metrics of Close Look 4.2 (and PG2 of its first version), over many samples at once.

A metric is a few lines over a :class:`Block` of padded rows, declared with its unit and direction by :func:`metric`.
:func:`score` cuts ragged samples into blocks of similar length, so that cost and memory follow the number of tokens.

Shapes: N samples, S tokens of all samples one after the other, B rows of a block, T its longest row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

VERSION = 1  # raise it when a number changes: scores of another version are computed again
BLOCK_TOKENS = 1 << 18  # padding included; what a block's temporaries cost is a small multiple of this

#: Why a sample could not be scored. Such a sample counts as 0 in every metric, never as right, and is reported.
FINE, NOT_FINITE, NO_EVIDENCE = 0, 1, 2
DEFECTS = {NOT_FINITE: "relevance that is not finite", NO_EVIDENCE: "no evidence among the chosen tokens"}


class Block:
    """Padded rows of similar length, and what several metrics need of them."""

    def __init__(self, relevance: np.ndarray, evidence: np.ndarray, count: np.ndarray) -> None:
        self.relevance = relevance  # [B, T], -inf on padding (right)
        self.evidence = evidence  # [B, T] bool, False on padding
        self.count = count  # [B] chosen tokens of each row

    @cached_property
    def rows(self) -> np.ndarray:
        return np.arange(len(self.count))  # [B]

    @cached_property
    def top(self) -> np.ndarray:
        """[B] where the largest relevance is; the first of several."""
        return self.relevance.argmax(axis=1)

    @cached_property
    def best_evidence(self) -> np.ndarray:
        """[B, 1] the largest relevance on evidence."""
        return np.where(self.evidence, self.relevance, -np.inf).max(axis=1, keepdims=True)

    @cached_property
    def positive(self) -> np.ndarray:
        """[B, T] bool."""
        return self.relevance > 0


@dataclass(frozen=True)
class Metric:
    """A declared metric: `function` maps a block to [B] floats in [0, 1]."""

    name: str
    label: str
    function: Callable[[Block], np.ndarray]
    unit: str
    higher_is_better: bool


METRICS: dict[str, Metric] = {}


def metric(label: str, unit: str = "%", higher_is_better: bool = True) -> Callable[[Callable], Callable]:
    """Declare a metric under the name of its function."""

    def declare(function: Callable[[Block], np.ndarray]) -> Callable[[Block], np.ndarray]:
        METRICS[function.__name__] = Metric(function.__name__, label, function, unit, higher_is_better)
        return function

    return declare


@metric("PG")
def pg(block: Block) -> np.ndarray:
    """Pointing game: the token with the largest relevance, the first of several, is evidence."""
    return block.evidence[block.rows, block.top]


@metric("PG2")
def pg2(block: Block) -> np.ndarray:
    """Pointing game, top 2 (Close Look v1): one of the two tokens with the largest relevance is evidence."""
    others = block.relevance.copy()
    others[block.rows, block.top] = -np.inf
    return pg(block) | block.evidence[block.rows, others.argmax(axis=1)]


@metric("MRR")
def mrr(block: Block) -> np.ndarray:
    """Reciprocal rank of the best evidence token with the ranks of Ferrando et al. (2023): n - dense_rank + 1.

    The dense rank counts distinct values from the smallest, so every tie in the row, wherever it is, moves all tokens
    down (Close Look 5.1 on bfloat16); without ties it is :func:`mrr_strict`.
    """
    ascending = np.sort(block.relevance, axis=1)  # padding first
    new = ascending[:, 1:] != ascending[:, :-1]
    counted = (ascending <= block.best_evidence) & (ascending > -np.inf)
    dense_rank = counted[:, 0] + (counted[:, 1:] & new).sum(axis=1)
    return 1 / (block.count - dense_rank + 1)


@metric("MRR strict")
def mrr_strict(block: Block) -> np.ndarray:
    """Reciprocal rank of the best evidence token with competition ranks: one more than the tokens above it (ours)."""
    return 1 / (1 + (block.relevance > block.best_evidence).sum(axis=1))


@metric("RMA")
def rma(block: Block) -> np.ndarray:
    """Relevance mass accuracy (Arras et al. 2022): positive relevance on evidence, as a share; 0 if there is none."""
    mass = np.where(block.positive, block.relevance, 0)  # [B, T]
    total = mass.sum(axis=1, dtype=np.float64)
    inside = np.where(block.evidence, mass, 0).sum(axis=1, dtype=np.float64)
    return np.divide(inside, total, out=np.zeros_like(total), where=total > 0)


@metric("PTA")
def pta(block: Block) -> np.ndarray:
    """Per-token accuracy: share of tokens with (relevance > 0) == evidence."""
    return 1 - (block.positive != block.evidence).sum(axis=1) / block.count


def score(relevance: np.ndarray, evidence: np.ndarray, chosen: np.ndarray, offsets: np.ndarray) -> Scores:
    """Every metric of every sample over its `chosen` tokens.

    `relevance` [S] float, `evidence` and `chosen` [S] bool, `offsets` [N + 1] where samples start and end in S.
    A sample with a defect (see DEFECTS) is 0 in every metric. Raises ValueError when the shapes do not fit.
    """
    if not (len(relevance) == len(evidence) == len(chosen) == offsets[-1]):
        raise ValueError(
            f"{len(relevance)} relevances, {len(evidence)} evidence, {len(chosen)} chosen marks, {offsets[-1]} tokens"
        )
    samples = len(offsets) - 1
    defect = np.full(samples, FINE, np.int8)
    defect[_count(chosen & evidence, offsets) == 0] = NO_EVIDENCE
    defect[_count(chosen & ~np.isfinite(relevance), offsets) > 0] = NOT_FINITE
    values = {name: np.zeros(samples, np.float32) for name in METRICS}
    for rows, block in _blocks(relevance, evidence, chosen, offsets, np.flatnonzero(defect == FINE)):
        for name, declared in METRICS.items():
            values[name][rows] = declared.function(block)
    return Scores(values, defect)


@dataclass(frozen=True)
class Scores:
    """`values` maps each metric to [N] float32 in [0, 1]; `defect` is [N], one of FINE, NOT_FINITE, NO_EVIDENCE."""

    values: dict[str, np.ndarray]
    defect: np.ndarray


def _count(marks: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """[N] how many of each sample's tokens are marked."""
    total = np.concatenate(([0], np.cumsum(marks)))
    return total[offsets[1:]] - total[offsets[:-1]]


def _blocks(
    relevance: np.ndarray, evidence: np.ndarray, chosen: np.ndarray, offsets: np.ndarray, rows: np.ndarray
) -> Iterator[tuple[np.ndarray, Block]]:
    """The samples `rows`, shortest first, as (their numbers, padded block of their chosen tokens)."""
    picked = np.flatnonzero(chosen)  # [C] chosen tokens of all samples
    counts = _count(chosen, offsets)
    starts = np.concatenate(([0], np.cumsum(counts)))[:-1]  # where a sample starts in `picked`
    rows = rows[np.argsort(counts[rows], kind="stable")]
    begin = 0
    while begin < len(rows):
        # Sorted by length, so the last row is the longest: take as many as fit, at least one.
        padded = np.arange(1, len(rows) - begin + 1) * counts[rows[begin:]]
        end = begin + max(1, int(np.searchsorted(padded, BLOCK_TOKENS, side="right")))
        part = rows[begin:end]
        count = counts[part]
        column = np.arange(count[-1])  # [T]
        real = column < count[:, None]  # [B, T]
        token = picked[(starts[part][:, None] + column)[real]]
        block = Block(np.full(real.shape, -np.inf, relevance.dtype), np.zeros(real.shape, bool), count)
        block.relevance[real] = relevance[token]
        block.evidence[real] = evidence[token]
        yield part, block
        begin = end
