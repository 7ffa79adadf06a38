"""The metrics of Close Look 4.2 (and PG2 of its first version), over many samples at once.

A metric is a few lines over a :class:`Block` of padded rows, declared with its unit and direction by :func:`metric`.
:func:`score` cuts ragged samples into blocks of similar length, so that cost and memory follow the number of tokens.

Shapes: N samples, S tokens of all samples one after the other, B rows of a block, T its longest row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from evaluation.tasks import Task
from lrp_core.plugins import Extended
from lrp_core.registry import Registry
from lrp_core.types import UserError, nearest

VERSION = 1  # raised when the numbers of all metrics change: scores of another version are computed again
BLOCK_TOKENS = 1 << 16  # padding included; a block and its temporaries fit a core's cache

#: Why a sample could not be scored. Such a sample counts as 0 in every metric, never as right, and is reported.
FINE, NOT_FINITE, NO_EVIDENCE = 0, 1, 2
DEFECTS = {NOT_FINITE: "relevance that is not finite", NO_EVIDENCE: "no evidence among the chosen tokens"}


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


#: Where a metric is shown beside the table of every metric: table 1; the tables of two settings; the first figure, and
#: wherever one metric has to do.
OVERVIEW, SETTINGS, LEAD = "overview", "settings", "lead"


@dataclass(frozen=True)
class Metric:
    """A declared metric, callable as its `function`, which maps a block to [B] floats: shares where the unit is %."""

    name: str
    label: str
    function: Callable[[Block], np.ndarray]
    unit: str = "%"
    higher_is_better: bool = True
    shown: tuple[str, ...] = ()  # OVERVIEW | SETTINGS | LEAD
    needs_evidence: bool = True  # else it is told of samples without evidence too, and of tasks that have none
    version: int = 1  # raised when its numbers change: scores of another version are computed again

    def __call__(self, block: Block) -> np.ndarray:
        return self.function(block)

    @property
    def scale(self) -> float:
        """What turns the function's numbers into the unit."""
        return 100.0 if self.unit == "%" else 1.0


METRICS: Extended[Metric] = Extended(Registry("metric"), "closelook.metrics", Metric)


def metric(label: str, **settings: Any) -> Callable[[Callable[[Block], np.ndarray]], Metric]:
    """Declares a metric under the name of its function; `settings` are further fields of :class:`Metric`.

    Raises UserError, naming both modules, when there is another of the name.
    """

    def declare(function: Callable[[Block], np.ndarray]) -> Metric:
        return METRICS.register(Metric(function.__name__, label, function, **settings), by=function.__module__)

    return declare


def applicable(task: Task) -> dict[str, Metric]:
    """The metrics that make sense for a task. Raises UserError for a name in its record that no metric has."""
    unknown = [name for name in task.metrics or () if name not in METRICS]
    if unknown:
        raise UserError(f"task {task.name} names the metric {unknown[0]!r}{nearest(unknown[0], METRICS)}")
    return {
        name: declared
        for name, declared in METRICS.items()
        if (task.metrics is None or name in task.metrics) and (task.evidence is not None or not declared.needs_evidence)
    }


def scored_by(task: Task) -> list[list[str | int]]:
    """What decides the numbers that scores of the task are: name and version of every metric that applies.

    Scores that something else decided are stale.
    """
    found: list[list[str | int]] = [["", VERSION]]
    return found + [[name, declared.version] for name, declared in applicable(task).items()]


def shown(where: str) -> list[str]:
    """Names of the metrics that are shown there."""
    return [name for name, declared in METRICS.items() if where in declared.shown]


def lead() -> str:
    """The metric that stands for all where only one can be shown."""
    return shown(LEAD)[0]


@metric("PG", shown=(OVERVIEW, SETTINGS, LEAD))
def pg(block: Block) -> np.ndarray:
    """Pointing game: the token with the largest relevance, the first of several, is evidence."""
    return block.evidence[block.rows, block.top]


@metric("PG2")
def pg2(block: Block) -> np.ndarray:
    """Pointing game, top 2 (Close Look v1): one of the two tokens with the largest relevance is evidence."""
    largest = block.relevance[block.rows, block.top]
    block.relevance[block.rows, block.top] = -np.inf
    second = block.relevance.argmax(axis=1)
    block.relevance[block.rows, block.top] = largest  # without a copy of the block
    return pg(block) | block.evidence[block.rows, second]


@metric("MRR", shown=(OVERVIEW, SETTINGS))
def mrr(block: Block) -> np.ndarray:
    """Reciprocal rank of the best evidence token with the ranks of Ferrando et al. (2023): n - dense_rank + 1.

    The dense rank counts distinct values from the smallest, so every tie at or below the evidence moves it down by one
    (Close Look 5.1 on bfloat16): the rank is the strict one plus those ties.
    """
    ascending = np.sort(block.relevance, axis=1)  # what is not chosen first
    tied = ascending[:, 1:] == ascending[:, :-1]
    others = np.maximum(block.relevance.shape[1] - block.count - 1, 0)  # [B] ties among what is not chosen
    if np.count_nonzero(tied) == others.sum():
        return mrr_strict(block)
    ties = row_count(tied & (ascending[:, 1:] <= block.best_evidence)) - others
    return 1 / (block.strict_rank + ties)


@metric("MRR strict")
def mrr_strict(block: Block) -> np.ndarray:
    """Reciprocal rank of the best evidence token with competition ranks: one more than the tokens above it (ours)."""
    return 1 / block.strict_rank


@metric("RMA", shown=(OVERVIEW, SETTINGS))
def rma(block: Block) -> np.ndarray:
    """Relevance mass accuracy (Arras et al. 2022): positive relevance on evidence, as a share; 0 if there is none."""
    mass = np.maximum(block.relevance, 0)  # [B, T]
    total = mass @ np.ones(mass.shape[1], mass.dtype)  # faster than a sum
    return np.divide(block.evidence_sum(mass), total, out=np.zeros_like(total), where=total > 0)


@metric("PTA", shown=(OVERVIEW,))
def pta(block: Block) -> np.ndarray:
    """Per-token accuracy: share of tokens with (relevance > 0) == evidence."""
    return 1 - row_count(block.positive != block.evidence) / block.count


def score(
    relevance: np.ndarray,
    evidence: np.ndarray,
    chosen: np.ndarray,
    offsets: np.ndarray,
    metrics: Mapping[str, Metric] = METRICS,
) -> Scores:
    """Each of `metrics` of every sample over its `chosen` tokens.

    `relevance` [S] float, `evidence` and `chosen` [S] bool, `offsets` [N + 1] where samples start and end in S.
    A sample with a defect (see DEFECTS) is 0 in every metric that the defect concerns.

    Raises ValueError when the shapes do not fit.
    """
    if not (len(relevance) == len(evidence) == len(chosen) == offsets[-1]):
        raise ValueError(
            f"{len(relevance)} relevances, {len(evidence)} evidence, {len(chosen)} chosen marks, {offsets[-1]} tokens"
        )
    defect = np.full(len(offsets) - 1, NO_EVIDENCE, np.int8)
    evidence = evidence & chosen
    defect[_samples_of(evidence, offsets)] = FINE
    with np.errstate(over="ignore", invalid="ignore"):
        suspicious = not np.isfinite(relevance.sum())  # one pass; too large a sum only costs the next one
    if suspicious:
        defect[_samples_of(chosen & ~np.isfinite(relevance), offsets)] = NOT_FINITE
    values = {name: np.zeros(len(defect), np.float32) for name in metrics}
    without = {name: declared for name, declared in metrics.items() if not declared.needs_evidence}
    for state, wanted in ((FINE, metrics), (NO_EVIDENCE, without)):
        told = np.flatnonzero(defect == state)
        if not wanted or not len(told):
            continue
        for samples, block in _blocks(relevance, evidence, chosen, offsets, told):
            for name, declared in wanted.items():
                values[name][samples] = declared(block)
    return Scores(values, defect)


@dataclass(frozen=True)
class Scores:
    """`values` maps each metric to [N] float32 in [0, 1]; `defect` is [N], one of FINE, NOT_FINITE, NO_EVIDENCE."""

    values: dict[str, np.ndarray]
    defect: np.ndarray


def _samples_of(marks: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """The samples of the marked tokens; few tokens are marked."""
    return np.searchsorted(offsets, np.flatnonzero(marks), side="right") - 1


def _blocks(
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
        (_, inside), (rows, outside) = (
            _in_block(at, part, starts[begin:end], padded.shape[1]) for at in (evidence_at, others_at)
        )
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
