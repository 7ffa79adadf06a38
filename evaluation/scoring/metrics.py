"""Metrics of relevance against evidence, over many samples at once (Close Look 4.2 and its v1, AttnLRP, NormXLogit).

A metric is a function of a :class:`Block` of samples with equally many tokens, declared with its unit and direction by
:func:`metric`. :func:`score` cuts samples into such blocks.

Shapes: N samples, S their tokens one sample after the other, B rows of a block, T tokens, G evidence tokens of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import scipy  # its parts are imported when they are first used: scipy.stats takes a while

from closelook.evaluation.scoring.blocks import Block, Largest, blocks
from closelook.evaluation.tasks import Task
from closelook.lrp_core.records.registry import Registry
from closelook.lrp_core.records.types import UserError, nearest

VERSION = 2  # raised when the numbers of all metrics change: scores of another version are computed again

#: Defects of samples that cannot be scored. Such a sample is 0 in every metric that the defect concerns, and is
#: reported.
FINE, NOT_FINITE, NO_EVIDENCE = 0, 1, 2
DEFECTS = {NOT_FINITE: "relevance that is not finite", NO_EVIDENCE: "no evidence among the chosen tokens"}

#: Parts of the report that show a metric, besides the table of all metrics. OVERVIEW: table 1. SETTINGS: the tables
#: that compare two settings. LEAD: the first figure, and wherever a single metric stands for all. OVERLAP: beside areas
#: under deletion curves. BY_LAYER: relevance of each layer. UNITS: units of a prompt instead of tokens.
OVERVIEW, SETTINGS, LEAD, OVERLAP, BY_LAYER, UNITS = "overview", "settings", "lead", "overlap", "by_layer", "units"


@dataclass(frozen=True)
class Metric:
    """A declared metric. Calling it calls its `function`, which maps a block to [B] floats, between 0 and 1 if in %.

    >>> median = Metric("median", "Median", lambda block: block.size / 2, unit="tokens", needs_evidence=False)
    >>> median.scale
    1.0
    """

    name: str
    label: str
    function: Callable[[Block], np.ndarray]
    unit: str = "%"
    higher_is_better: bool = True
    shown: tuple[str, ...] = ()  # OVERVIEW | SETTINGS | LEAD | OVERLAP | BY_LAYER | UNITS
    needs_evidence: bool = True  # False: it is also computed for samples, and tasks, without evidence
    version: int = 1  # raised when its numbers change: scores of another version are computed again
    is_compared: bool = True  # False: methods are not tested by it, since it is the chance level of another metric

    def __call__(self, block: Block) -> np.ndarray:
        return self.function(block)

    @property
    def scale(self) -> float:
        """The factor that turns the function's numbers into the unit."""
        return 100.0 if self.unit == "%" else 1.0


METRICS: Registry[Metric] = Registry("metric", group="closelook.metrics", record_class=Metric)


def metric(label: str, **settings: Any) -> Callable[[Callable[[Block], np.ndarray]], Metric]:
    """Decorator that declares a metric under the name of its function; `settings` are further fields of `Metric`.

    Raises UserError, naming both modules, if the name is taken.
    """

    def declare(function: Callable[[Block], np.ndarray]) -> Metric:
        return METRICS.register(Metric(function.__name__, label, function, **settings), by=function.__module__)

    return declare


def applicable(task: Task) -> dict[str, Metric]:
    """The metrics that apply to a task, by name. Raises UserError if the task's record names an unknown metric."""
    unknown = [name for name in task.metrics or () if name not in METRICS]
    if unknown:
        raise UserError(f"task {task.name} names the metric {unknown[0]!r}{nearest(unknown[0], METRICS)}")
    metrics = {}
    for name, declared in METRICS.items():
        is_named = task.metrics is None or name in task.metrics
        if is_named and (task.evidence is not None or not declared.needs_evidence):
            metrics[name] = declared
    return metrics


def scored_by(task: Task) -> list[list[str | int]]:
    """The [name, version] of every metric that applies to the task, after ["", VERSION] for all metrics.

    They enter the key of the task's scores, so that scores of another version are computed again.
    """
    versions: list[list[str | int]] = [["", VERSION]]
    return versions + [[name, declared.version] for name, declared in applicable(task).items()]


def shown(where: str) -> list[str]:
    """Names of the metrics that a part of the report shows: OVERVIEW, SETTINGS, LEAD, OVERLAP, BY_LAYER or UNITS."""
    return [name for name, declared in METRICS.items() if where in declared.shown]


def lead() -> str:
    """The name of the metric that is shown where only one can be."""
    return shown(LEAD)[0]


def overlap() -> str:
    """The name of the metric that is shown beside areas under deletion curves."""
    return shown(OVERLAP)[0]


@metric("PG", shown=(OVERVIEW, SETTINGS, LEAD, UNITS), version=2)
def pg(block: Block) -> np.ndarray:
    """Pointing game: 1 if the token with the largest relevance is evidence; if several tie, the share of evidence."""
    return _hit(block.largest(np.ones_like(block.size)))


@metric("PG2", version=2)
def pg2(block: Block) -> np.ndarray:
    """Pointing game, top 2 (Close Look v1): 1 if one of the two tokens with the largest relevance is evidence.

    Ties are resolved in expectation: every choice among equal tokens is equally likely.
    """
    return _hit(block.largest(np.minimum(block.count, 2)))


def _hit(top: Largest) -> np.ndarray:
    """[B] the probability that evidence is among the largest tokens `top`; ties are broken at random.

    Of t tied tokens, e of them evidence, k are chosen: all miss the evidence with probability C(t - e, k) / C(t, k).
    """
    missed = np.ones(len(top.tied))
    for drawn in range(top.places.max()):  # tied tokens that were drawn before
        is_drawn = drawn < top.places
        missed *= np.where(is_drawn, (top.tied - top.evidence_tied - drawn) / np.maximum(top.tied - drawn, 1), 1)
    return np.where(top.evidence_above > 0, 1.0, 1 - np.maximum(missed, 0))


@metric("Tied tops", higher_is_better=False)
def tied_tops(block: Block) -> np.ndarray:
    """1 if several tokens share the largest relevance, so that it is chance which of them a method points at."""
    return block.largest(np.ones_like(block.size)).tied > 1


@metric("MRR", shown=(OVERVIEW, SETTINGS, UNITS))
def mrr(block: Block) -> np.ndarray:
    """Reciprocal rank of the best evidence token with the ranks of Ferrando et al. (2023): n - dense_rank + 1.

    The dense rank counts distinct values from the smallest on. Every tie at or below the evidence therefore worsens its
    rank by one (see Close Look 5.2 on bfloat16): the rank is the strict rank plus the number of these ties.
    """
    lower, upper = block.ascending[:, :-1], block.ascending[:, 1:]
    ties = ((lower == upper) & (upper <= block.best_evidence)).sum(axis=1)
    return 1 / (block.strict_rank + ties)


@metric("MRR strict")
def mrr_strict(block: Block) -> np.ndarray:
    """Reciprocal rank of the best evidence token; its rank is 1 plus the number of tokens above it (not in a paper)."""
    return 1 / block.strict_rank


@metric("RMA", shown=(OVERVIEW, SETTINGS))
def rma(block: Block) -> np.ndarray:
    """Relevance mass accuracy (Arras et al. 2022): the share of positive relevance on evidence; 0 without any."""
    total = np.maximum(block.relevance, 0).sum(axis=1)
    inside = np.maximum(block.evidence_values, 0).sum(axis=1)
    return np.divide(inside, total, out=np.zeros_like(total), where=total > 0)


@metric("PTA", shown=(OVERVIEW,))
def pta(block: Block) -> np.ndarray:
    """Per-token accuracy: the share of tokens for which relevance is positive exactly if the token is evidence."""
    return (block.positive == block.evidence).mean(axis=1)


@metric("IoU", shown=(OVERLAP,), version=2)
def iou(block: Block) -> np.ndarray:
    """Intersection over union of the k evidence tokens and the k tokens of largest relevance (AttnLRP 4.1).

    Only tokens of positive relevance count among the largest. AttnLRP prints no formula; of the possible readings, this
    one fits its numbers. Where tokens tie for the last places, the value is the expectation over all choices among
    them.
    """
    top = block.largest(block.size)
    above = (block.evidence_values > np.maximum(top.value, 0)[:, None]).sum(axis=1)
    has_tie = top.value > 0  # else every positive token is among the largest, and none is tied
    shared = above + np.where(has_tie & (top.places == top.tied), top.evidence_tied, 0)
    chosen = np.minimum(block.positive.sum(axis=1), block.size)
    values = shared / (chosen + block.size - shared)
    # Some of the tied tokens are chosen: how many of the chosen ones are evidence is hypergeometric.
    for row in np.flatnonzero(has_tie & (top.places < top.tied) & (top.evidence_tied > 0)):
        evidence_drawn = np.arange(top.places[row] + 1)
        probability = scipy.stats.hypergeom.pmf(evidence_drawn, top.tied[row], top.evidence_tied[row], top.places[row])
        both = shared[row] + evidence_drawn
        values[row] = probability @ (both / (chosen[row] + block.size[row] - both))
    return values


@metric("IoU positive")
def iou_positive(block: Block) -> np.ndarray:
    """Intersection over union of the evidence and all tokens of positive relevance (a reading of AttnLRP 4.1)."""
    return (block.positive & block.evidence).sum(axis=1) / (block.positive | block.evidence).sum(axis=1)


@metric("IoU soft")
def iou_soft(block: Block) -> np.ndarray:
    """Soft intersection over union (a reading of AttnLRP 4.1): the sum of minima over the sum of maxima.

    Minima and maxima are of evidence (0 or 1) and positive relevance divided by the largest.
    """
    largest = np.maximum(block.ascending[:, -1:], 0)
    share = np.maximum(block.relevance, 0) / np.where(largest > 0, largest, 1)
    return np.minimum(share, block.evidence).sum(axis=1) / np.maximum(share, block.evidence).sum(axis=1)


@metric("RRA", version=2)
def rra(block: Block) -> np.ndarray:
    """Relevance rank accuracy (Arras et al. 2022): the share of evidence among the g tokens of largest relevance.

    g is the number of evidence tokens. Ties are resolved in expectation: every choice is equally likely.
    """
    top = block.largest(block.size)
    return (top.evidence_above + top.evidence_tied * top.places / top.tied) / block.size


@metric("AP", shown=(BY_LAYER, UNITS))
def ap(block: Block) -> np.ndarray:
    """Average precision of evidence in the ranking by relevance (NormXLogit 4.2).

    It is the mean, over the evidence tokens, of the precision at the token: among the tokens of its row with at least
    its relevance, the share that is evidence. Tokens of equal relevance therefore have the same precision.
    """
    values = block.evidence_values[:, :, None]  # [B, G, 1]
    evidence = (block.evidence_values[:, None] >= values).sum(axis=2)  # with at least an evidence token's relevance
    tokens = (block.relevance[:, None] >= values).sum(axis=2)
    return (evidence / tokens).mean(axis=1)


@metric("Dot product", shown=(BY_LAYER,))
def dot(block: Block) -> np.ndarray:
    """Dot product of evidence and positive relevance that is divided by its sum (NormXLogit 4.2); it equals RMA.

    NormXLogit normalises relevance so for methods that are never negative; it is applied to all methods.
    """
    return rma(block)


@metric("Dot product, softmax", shown=(BY_LAYER,))
def dot_softmax(block: Block) -> np.ndarray:
    """Dot product of evidence and the softmax of relevance over tokens (NormXLogit 4.2).

    NormXLogit normalises logits and norms so. For values of their size, the softmax is nearly one-hot.
    """
    return (scipy.special.softmax(block.relevance, axis=1) * block.evidence).sum(axis=1)


@metric("RMA, shuffled", is_compared=False)
def rma_shuffled(block: Block) -> np.ndarray:
    """Chance level of RMA for the method's values: its mean over all orders of them.

    It is the share of evidence if any value is positive. The chance level of metrics that count positive relevance
    depends on how many values of a method are positive.
    """
    return np.where(block.positive.any(axis=1), block.size / block.count, 0.0)


@metric("PTA, shuffled", is_compared=False)
def pta_shuffled(block: Block) -> np.ndarray:
    """Chance level of PTA for the method's values: its mean over all orders of them."""
    positive, size, count = block.positive.sum(axis=1), block.size, block.count
    return 1 - (positive + size - 2 * positive * size / count) / count


@metric("IoU, shuffled", is_compared=False)
def iou_shuffled(block: Block) -> np.ndarray:
    """Chance level of IoU for the method's values: its mean over all orders of them."""
    return _mean_overlaps(block, np.minimum(block.positive.sum(axis=1), block.size))


@metric("IoU positive, shuffled", is_compared=False)
def iou_positive_shuffled(block: Block) -> np.ndarray:
    """Chance level of IoU positive for the method's values: its mean over all orders of them."""
    return _mean_overlaps(block, block.positive.sum(axis=1))


def _mean_overlaps(block: Block, drawn: np.ndarray) -> np.ndarray:
    """[B] each row's expected IoU of its evidence and `drawn` [B] of its chosen tokens, drawn at random."""
    tokens, evidence = int(block.count[0]), int(block.size[0])
    return np.array([mean_overlap(tokens, evidence, number) for number in drawn.tolist()])


@cache
def mean_overlap(tokens: int, evidence: int, drawn: int) -> float:
    """Expected intersection over union of `evidence` tokens and `drawn` tokens, drawn at random from `tokens`.

    >>> mean_overlap(tokens=2, evidence=1, drawn=1)
    0.5
    """
    shared = np.arange(min(drawn, evidence) + 1)
    return float(scipy.stats.hypergeom.pmf(shared, tokens, evidence, drawn) @ (shared / (drawn + evidence - shared)))


@dataclass(frozen=True)
class Scores:
    """The metrics of N samples."""

    values: dict[str, np.ndarray]  # [N] float32 by metric, not scaled to its unit
    defect: np.ndarray  # [N] FINE, NOT_FINITE or NO_EVIDENCE


def score(
    relevance: np.ndarray,
    evidence: np.ndarray,
    chosen: np.ndarray,
    offsets: np.ndarray,
    metrics: Mapping[str, Metric] = METRICS,
) -> Scores:
    """Computes each of `metrics` for every sample over its `chosen` tokens.

    `relevance` is [S] float, `evidence` and `chosen` are [S] bool. The tokens of sample i are those from `offsets`[i]
    up to, but without, `offsets`[i + 1]; `offsets` is [N + 1]. A sample whose relevance is not finite is 0 in every
    metric; one without evidence is 0 in the metrics that need it.

    Raises ValueError if the shapes do not fit, and UserError for a metric that does not return finite numbers [B].
    """
    if not (len(relevance) == len(evidence) == len(chosen) == offsets[-1]):
        raise ValueError(
            f"relevance has {len(relevance)} tokens, evidence {len(evidence)}, chosen {len(chosen)} and offsets "
            f"{offsets[-1]}: all must have the same number"
        )
    sample = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))[chosen]
    relevance, evidence = relevance[chosen], evidence[chosen]
    counts = np.bincount(sample, minlength=len(offsets) - 1)
    sizes = np.bincount(sample[evidence], minlength=len(counts))
    defect = np.where(sizes > 0, FINE, NO_EVIDENCE)
    defect[sample[~np.isfinite(relevance)]] = NOT_FINITE
    values = {name: np.zeros(len(counts), np.float32) for name in metrics}
    without = {name: declared for name, declared in metrics.items() if not declared.needs_evidence}
    for state, computed in ((FINE, metrics), (NO_EVIDENCE, without)):
        of_state = np.flatnonzero(defect == state)
        if not computed or not len(of_state):
            continue
        for samples, block in blocks(relevance, evidence, counts, sizes, of_state):
            for name, declared in computed.items():
                values[name][samples] = _values_of(name, declared(block), len(samples))
    return Scores(values, defect)


def _values_of(name: str, values: Any, rows: int) -> np.ndarray:
    """`values`, what the metric `name` returned for a block of so many `rows`.

    Raises UserError unless they are an array [rows] of finite real numbers.
    """
    if not isinstance(values, np.ndarray) or values.shape != (rows,):
        shown = f"an array of shape {values.shape}" if isinstance(values, np.ndarray) else type(values).__name__
        raise UserError(f"metric {name} gave {shown} for {rows} samples: it must give an array of shape ({rows},)")
    if values.dtype.kind not in "biuf":
        raise UserError(f"metric {name} gave values of type {values.dtype}, not real numbers: return floats")
    if not np.isfinite(values).all():
        first = int(np.argmin(np.isfinite(values)))
        raise UserError(f"metric {name} gave {values[first]} for row {first} of a block: every value must be finite")
    return values
