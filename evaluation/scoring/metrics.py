"""Metrics against evidence, over many samples at once: Close Look 4.2, PG2 of its first version, AttnLRP, NormXLogit.

A metric is a few lines over a :class:`Block` of padded rows, declared with its unit and direction by :func:`metric`.
:func:`score` cuts ragged samples into blocks of similar length, so that cost and memory follow the number of tokens.

Shapes: N samples, S tokens of all samples one after the other, B rows of a block, T its longest row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from scipy.stats import hypergeom

from evaluation.scoring.blocks import Block, Largest, blocks, row_count
from evaluation.tasks import Task
from lrp_core.plugins import Extended
from lrp_core.registry import Registry
from lrp_core.types import UserError, nearest

VERSION = 2  # raised when the numbers of all metrics change: scores of another version are computed again

#: Why a sample could not be scored. Such a sample counts as 0 in every metric, never as right, and is reported.
FINE, NOT_FINITE, NO_EVIDENCE = 0, 1, 2
DEFECTS = {NOT_FINITE: "relevance that is not finite", NO_EVIDENCE: "no evidence among the chosen tokens"}

#: Where a metric is shown beside the table of every metric: table 1; the tables of two settings; the first figure, and
#: wherever one metric has to do; beside the areas under faithfulness curves; of what each layer says of the tokens.
OVERVIEW, SETTINGS, LEAD, OVERLAP, BY_LAYER = "overview", "settings", "lead", "overlap", "by_layer"


@dataclass(frozen=True)
class Metric:
    """A declared metric, callable as its `function`, which maps a block to [B] floats: shares where the unit is %."""

    name: str
    label: str
    function: Callable[[Block], np.ndarray]
    unit: str = "%"
    higher_is_better: bool = True
    shown: tuple[str, ...] = ()  # OVERVIEW | SETTINGS | LEAD | OVERLAP | BY_LAYER
    needs_evidence: bool = True  # else it is told of samples without evidence too, and of tasks that have none
    version: int = 1  # raised when its numbers change: scores of another version are computed again
    is_compared: bool = True  # by tests between methods; not where it is what another metric is held against

    def __call__(self, block: Block) -> np.ndarray:
        return self.function(block)

    @property
    def scale(self) -> float:
        """The factor that turns the function's numbers into the unit."""
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
    metrics = {}
    for name, declared in METRICS.items():
        wanted = task.metrics is None or name in task.metrics
        if wanted and (task.evidence is not None or not declared.needs_evidence):
            metrics[name] = declared
    return metrics


def scored_by(task: Task) -> list[list[str | int]]:
    """Name and version of every metric that applies to the task, which decide the numbers of its scores.

    Scores that something else decided are stale.
    """
    versions: list[list[str | int]] = [["", VERSION]]
    return versions + [[name, declared.version] for name, declared in applicable(task).items()]


def shown(where: str) -> list[str]:
    """Names of the metrics that are shown there."""
    return [name for name, declared in METRICS.items() if where in declared.shown]


def lead() -> str:
    """The metric that stands for all where only one can be shown."""
    return shown(LEAD)[0]


def overlap() -> str:
    """The metric of evidence that stands beside areas under faithfulness curves."""
    return shown(OVERLAP)[0]


@metric("PG", shown=(OVERVIEW, SETTINGS, LEAD), version=2)
def pg(block: Block) -> np.ndarray:
    """Pointing game: the token with the largest relevance is evidence; of several, the share that is."""
    return _hit(block.largest(np.ones_like(block.size)), 1)


@metric("PG2", version=2)
def pg2(block: Block) -> np.ndarray:
    """Pointing game, top 2 (Close Look v1): one of the two tokens with the largest relevance is evidence.

    Of equal tokens every choice is as likely.
    """
    size = np.minimum(block.count, 2).astype(int)
    return _hit(block.largest(size), size)


def _hit(top: Largest, size: np.ndarray | int) -> np.ndarray:
    """[B] the probability that one of the `size` largest is evidence, when equal tokens are chosen among at random."""
    missed = np.ones(len(top.tied))
    for place in range(int(np.max(size, initial=1))):  # C(t - e, k) / C(t, k), a place after the other
        taken = place < top.places
        missed *= np.where(taken, (top.tied - top.evidence_tied - place) / np.maximum(top.tied - place, 1), 1)
    return np.where(top.evidence_above > 0, 1.0, 1 - np.maximum(missed, 0))


@metric("Tied tops", higher_is_better=False)
def tied_tops(block: Block) -> np.ndarray:
    """Several tokens share the largest relevance: which of them a method points at is chance."""
    return block.largest(np.ones_like(block.size)).tied > 1


@metric("MRR", shown=(OVERVIEW, SETTINGS))
def mrr(block: Block) -> np.ndarray:
    """Reciprocal rank of the best evidence token with the ranks of Ferrando et al. (2023): n - dense_rank + 1.

    The dense rank counts distinct values from the smallest, so every tie at or below the evidence moves it down by one
    (Close Look 5.1 on bfloat16): the rank is the strict one plus those ties.
    """
    ascending = block.ascending
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


@metric("IoU", shown=(OVERLAP,), version=2)
def iou(block: Block) -> np.ndarray:
    """Overlap of the evidence and as many tokens of the largest positive relevance, over their union (AttnLRP 4.1).

    AttnLRP prints no formula; of the readings this one fits its numbers. Of equal tokens every choice is as likely.
    """
    top, positive = block.largest(block.size), row_count(block.positive)
    among_positive = block.evidence_total(block.evidence_values > np.maximum(top.value, 0)[block.evidence_rows])
    counted = top.value > 0  # else every positive token is among the largest
    shared = among_positive + np.where(counted & (top.places == top.tied), top.evidence_tied, 0)
    chosen = np.minimum(positive, block.size)
    values = shared / (chosen + block.size - shared)
    for row in np.flatnonzero(counted & (top.places < top.tied) & (top.evidence_tied > 0)):
        drawn = np.arange(top.places[row] + 1)
        likely = hypergeom.pmf(drawn, top.tied[row], top.evidence_tied[row], top.places[row])
        both = shared[row] + drawn
        values[row] = likely @ (both / (chosen[row] + block.size[row] - both))
    return values


@metric("IoU positive")
def iou_positive(block: Block) -> np.ndarray:
    """Overlap of the evidence and all tokens of positive relevance, over their union (a reading of AttnLRP 4.1)."""
    shared = row_count(block.positive & block.evidence)
    return shared / (row_count(block.positive) + block.size - shared)


@metric("IoU soft")
def iou_soft(block: Block) -> np.ndarray:
    """As `iou`, with positive relevance as a share of the largest: sum of minima over sum of maxima (the same)."""
    share = np.maximum(block.relevance, 0)  # [B, T]
    largest = share[block.rows, block.top]
    share /= np.where(largest > 0, largest, 1)[:, None]
    inside = block.evidence_sum(share)
    return inside / (share @ np.ones(share.shape[1], share.dtype) - inside + block.size)


@metric("RRA", version=2)
def rra(block: Block) -> np.ndarray:
    """Relevance rank accuracy (Arras et al. 2022): as many tokens of the largest relevance, the share on evidence.

    Of equal tokens every choice is as likely.
    """
    top = block.largest(block.size)
    return (top.evidence_above + top.evidence_tied * top.places / top.tied) / block.size


@metric("AP", shown=(BY_LAYER,))
def ap(block: Block) -> np.ndarray:
    """Average precision of evidence in the ranking by relevance (NormXLogit 4.2); equal tokens share a threshold."""
    order = np.lexsort((-block.evidence_values, block.evidence_rows))  # row by row, as they were
    value, row = block.evidence_values[order], block.evidence_rows[order]
    last = np.append((value[1:] != value[:-1]) | (row[1:] != row[:-1]), True)  # of its threshold
    ends = np.flatnonzero(last)
    until = np.repeat(ends, np.diff(ends, prepend=-1)) + 1  # [E] evidence up to the threshold, in all rows
    so_far = until - (np.cumsum(block.size) - block.size)[row]
    return block.evidence_total(so_far / block.at_least[order]) / block.size


@metric("Dot product", shown=(BY_LAYER,))
def dot(block: Block) -> np.ndarray:
    """Dot product of evidence and relevance (NormXLogit 4.2), its positive part divided by its sum: RMA by definition.

    The normalisation that is the same for all methods, and NormXLogit's own for those that are never negative.
    """
    return rma(block)


@metric("Dot product, softmax", shown=(BY_LAYER,))
def dot_softmax(block: Block) -> np.ndarray:
    """As `dot`, with a softmax over tokens, which NormXLogit takes for logits and norms: near one-hot."""
    shares = np.exp(block.relevance - block.relevance[block.rows, block.top, None])  # 0 where not chosen
    return block.evidence_sum(shares) / (shares @ np.ones(shares.shape[1], shares.dtype))


@metric("RMA, shuffled", is_compared=False)
def rma_shuffled(block: Block) -> np.ndarray:
    """RMA by chance: its mean over all orders of the method's own values, the share of evidence where any is positive.

    Metrics that count positive relevance have a chance of their own for methods that are mostly positive or negative.
    """
    return np.where(block.positive.any(axis=1), block.size / block.count, 0.0)


@metric("PTA, shuffled", is_compared=False)
def pta_shuffled(block: Block) -> np.ndarray:
    """PTA by chance: its mean over all orders of the method's own values."""
    positive, size, count = row_count(block.positive), block.size, block.count
    return 1 - (positive + size - 2 * positive * size / count) / count


@metric("IoU, shuffled", is_compared=False)
def iou_shuffled(block: Block) -> np.ndarray:
    """IoU by chance: its mean over all orders of the method's own values."""
    return _mean_overlaps(block, np.minimum(row_count(block.positive), block.size))


@metric("IoU positive, shuffled", is_compared=False)
def iou_positive_shuffled(block: Block) -> np.ndarray:
    """IoU positive by chance: its mean over all orders of the method's own values."""
    return _mean_overlaps(block, row_count(block.positive))


def _mean_overlaps(block: Block, drawn: np.ndarray) -> np.ndarray:
    """[B] the mean overlap of each row's evidence and `drawn` [B] of its tokens."""
    sizes = np.stack([block.count, block.size, drawn], axis=1).astype(int)
    distinct, of = np.unique(sizes, axis=0, return_inverse=True)
    return np.array([mean_overlap(*row) for row in distinct.tolist()])[of.ravel()]


@cache
def mean_overlap(tokens: int, evidence: int, drawn: int) -> float:
    """The mean over all draws of so many `tokens` of the intersection with the evidence, over the union.

    >>> mean_overlap(tokens=2, evidence=1, drawn=1)
    0.5
    """
    shared = np.arange(min(drawn, evidence) + 1)
    return float(hypergeom.pmf(shared, tokens, evidence, drawn) @ (shared / (drawn + evidence - shared)))


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
        for samples, block in blocks(relevance, evidence, chosen, offsets, told):
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
