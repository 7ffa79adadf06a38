"""Claims of methods about a sample's units, and the measures by which they are judged.

A claim is a method's relevance of the units, for one explanation. Measures tell how well it predicts the effect of
removing units: LDS, infidelity, drops. The *worth* of a mask is L, the answer's log-probability, or F, the sum of its
logits, after the prompt that the mask leaves (see `lrp_core.records.ablated`); all methods are judged by the same
masks. A sample with few units has all its masks run, in two halves: a method is fitted to each half and judged by the
other, and its result is the mean of both.

Shapes: n units of a sample, M its masks, R masks still to run, J judging masks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.stats import rankdata

from closelook.evaluation.ablations.masks import DROPPED
from closelook.evaluation.ablations.methods import BUDGETS
from closelook.evaluation.scoring.chance import chance
from closelook.evaluation.scoring.controls import error_after_scaling
from closelook.evaluation.scoring.faithfulness.areas import ranks_of
from closelook.evaluation.scoring.metrics import METRICS, UNITS, score, shown
from closelook.lrp_core.methods.record import Method
from closelook.lrp_core.records.ablated import Ablated

FEWEST = 4  # units; LDS is not defined for fewer
BUDGET = "budget"  # name of the option that limits to how many masks a method is fitted
NAN = float("nan")
_DIGITS = 12  # decimals of sums of relevance, as shares of all relevance: smaller differences are rounding errors


def lds(relevance: np.ndarray, kept: np.ndarray, worth: np.ndarray) -> float:
    """Linear datamodeling score: Spearman's correlation, over masks, of the kept relevance and the worth.

    The kept relevance of a mask is the sum of `relevance` [n] over the units that it keeps; `kept` [J, n] are the
    judging masks, `worth` [J] their worths. 0 if the kept relevance is the same for all masks. NaN if the worth is the
    same for all up to rounding, and for fewer than FEWEST units or two masks.
    """
    if len(relevance) < FEWEST or len(worth) < 2:
        return NAN
    of_worth = ranks_of(worth)
    if not np.ptp(of_worth):
        return NAN
    size = np.abs(relevance).sum()
    predicted = np.round(kept @ (relevance / (size or 1.0)), _DIGITS)
    return float(np.corrcoef(rankdata(predicted), of_worth)[0, 1]) if np.ptp(predicted) else 0.0


def infidelity(relevance: np.ndarray, kept: np.ndarray, worth: np.ndarray, full: float) -> float:
    """Infidelity (Yeh et al. 2019) after scaling: sum of (b x - d)^2 over masks, divided by the sum of d^2.

    x [J] is the sum of `relevance` [n] over the units that a mask removes, d [J] the worth of the `full` prompt minus
    the mask's `worth`; `kept` [J, n] are the masks. The factor b >= 0 is the one that makes the error smallest. 1 if x
    is 0 for all masks; NaN if d is.
    """
    return error_after_scaling((~kept).astype(np.float64) @ relevance, full - worth)


def most_relevant(relevance: np.ndarray, count: int, ties: np.ndarray) -> np.ndarray:
    """The mask [n] that removes the `count` units of largest `relevance` [n] and keeps all others.

    Units of equal relevance are removed in the order of `ties` [n], a permutation that all methods of a sample share.
    """
    order = sorted(range(len(relevance)), key=lambda unit: (-relevance[unit], ties[unit]))
    kept = np.ones(len(relevance), bool)
    kept[order[:count]] = False
    return kept


@dataclass(frozen=True)
class Sample:
    """A sample's ablations, and what else claims about its units are judged by."""

    ablated: Ablated
    swapped: bool  # True: all masks are run, and the halves to fit and to judge are also used the other way round
    random: Mapping[int, np.ndarray]  # indices of masks that remove random units, by the number of removed units
    ties: np.ndarray  # [n] the order of units of equal relevance
    evidence: np.ndarray | None = None  # [n] bool; None if the sample has no evidence

    @cached_property
    def folds(self) -> list[Ablated]:
        """The ablations, once for each way to fit and to judge: if `swapped`, also with both halves exchanged."""
        ablated = self.ablated
        other = replace(ablated, fit=ablated.judge, judge=ablated.fit)
        return [ablated, other] if self.swapped else [ablated]

    @property
    def sizes(self) -> list[int]:
        """The numbers of top units that are removed together to measure drops; fewer than the sample has units."""
        return [count for count in DROPPED if count < self.ablated.units]


@dataclass(frozen=True)
class Claim:
    """The relevance of a sample's units by a method, for one explanation."""

    explanation: str
    relevance: Sequence[np.ndarray]  # [n] for each of `Sample.folds`
    prompts: int = 0  # ablated prompts that the method ran
    screened: bool = False  # True: made by `screened`
    is_whole: bool = True  # False: a screened claim or one of a smaller budget, which has no drops and no evidence


def of_tokens(sample: Sample, explanation: str, relevance: np.ndarray) -> Claim:
    """The claim of a method whose `relevance` of units [n] comes from its relevance of tokens: equal in all folds."""
    return Claim(explanation, [relevance] * len(sample.folds))


def is_fitted(sample: Sample, method: Method) -> bool:
    """False if the method has a budget and some fold of the sample has no masks to fit it to: it has two units."""
    return BUDGET not in method.values or all(len(fold.fit) for fold in sample.folds)


def of_ablations(sample: Sample, method: Method) -> Iterator[Claim]:
    """The claims of a method that is computed from ablations, for each of its explanations.

    A method with a budget makes claims for smaller BUDGETS too, before its own, if masks are not all run.
    """
    budgets: list[int | None] = [None]
    if BUDGET in method.values and not sample.swapped:
        most = min(method.values[BUDGET], len(sample.ablated.fit))
        budgets = [*(budget for budget in BUDGETS if budget < most), most]
    for budget in budgets:
        bound = method if budget is None else method.configured(method.name, **{BUDGET: budget})
        results = [bound.of_units(fold) for fold in sample.folds]
        for explanation in results[0].values:
            relevance = [result.values[explanation] for result in results]
            yield Claim(explanation, relevance, results[0].prompts, is_whole=budget == budgets[-1])


def screened(sample: Sample, claim: Claim) -> Iterator[Claim]:
    """A claim for every k from 1 to n: leave-one-out of the k units that `claim` finds most relevant, 0 for the others.

    It costs k + 1 prompts: the whole prompt, and one without each of these units.
    """
    odds = sample.ablated.answer_odds
    drops = odds[sample.ablated.full] - odds[sample.ablated.without]  # [n]
    for count in range(1, sample.ablated.units + 1):
        top = [~most_relevant(relevance, count, sample.ties) for relevance in claim.relevance]
        relevance = [np.where(chosen, drops, 0.0) for chosen in top]
        yield Claim(claim.explanation, relevance, count + 1, screened=True, is_whole=False)


def masks_to_run(sample: Sample, claims: Sequence[Claim]) -> np.ndarray:
    """The distinct masks [R, n] that `judged` needs for drops and that were not run yet.

    Each removes the units that a claim finds most relevant, in the numbers of `Sample.sizes`.
    """
    known = {mask.tobytes() for mask in sample.ablated.kept}
    masks: dict[bytes, np.ndarray] = {}
    for claim in claims:
        for relevance in claim.relevance if claim.is_whole else ():
            for count in sample.sizes:
                mask = most_relevant(relevance, count, sample.ties)
                if mask.tobytes() not in known:
                    masks[mask.tobytes()] = mask
    return np.array(list(masks.values()), bool).reshape(len(masks), sample.ablated.units)


def judged(sample: Sample, claim: Claim, run: Ablated, by_chance: bool = False) -> dict[str, object]:
    """The columns of the schema of sources for a claim: its relevance, and the measures by which it is judged.

    `run` are the sample's ablations, those of `masks_to_run` included. With `by_chance`, which is for random relevance,
    measures are their expected values; only infidelity is that of the relevance drawn.
    """
    columns: dict[str, object] = {
        "explanation": claim.explanation,
        "ablated": claim.prompts,
        "screened": claim.screened,
        "relevance": np.mean(claim.relevance, axis=0).tolist(),
        **_of_masks(sample, claim, by_chance),
        **{f"drop_{name}": [] for name in ("l", "f", "y")},
        **dict.fromkeys(shown(UNITS)),
        "parts": None,
    }
    if claim.is_whole:
        columns |= _drops(sample, claim, run, by_chance)
        if sample.evidence is not None:
            columns |= _of_evidence(sample.evidence, claim, by_chance)
    return columns


def _of_masks(sample: Sample, claim: Claim, by_chance: bool) -> dict[str, float | None]:
    """LDS and infidelity of a claim against L and F (see the module), as means over folds; None if undefined."""
    numbers: dict[str, list[float]] = {}
    for fold, relevance in zip(sample.folds, claim.relevance, strict=True):
        kept = fold.kept[fold.judge]
        for name, worth in (("l", fold.log_probability), ("f", fold.summed_logits)):
            of_masks = worth[fold.judge]
            correlation = lds(relevance, kept, of_masks)
            numbers.setdefault(f"lds_{name}", []).append(correlation * (0.0 if by_chance else 1.0))
            error = infidelity(relevance, kept, of_masks, float(worth[fold.full]))
            numbers.setdefault(f"infidelity_{name}", []).append(error)
    return {name: _mean(values) for name, values in numbers.items()}


def _mean(values: Sequence[float]) -> float | None:
    """The mean of the finite `values`; None if there are none."""
    known = [value for value in values if np.isfinite(value)]
    return float(np.mean(known)) if known else None


def _drops(sample: Sample, claim: Claim, run: Ablated, by_chance: bool) -> dict[str, list[float]]:
    """The drops of L, F and y without the most relevant units: a list for each, in the order of `Sample.sizes`."""
    at = {mask.tobytes(): number for number, mask in enumerate(run.kept)}
    drops = {}
    for name, worth in (("l", run.log_probability), ("f", run.summed_logits), ("y", run.answer_odds)):
        of_name = []
        for count in sample.sizes:
            if by_chance:
                masks = sample.ablated.without if count == 1 else sample.random[count]
            else:
                tops = (most_relevant(relevance, count, sample.ties) for relevance in claim.relevance)
                masks = np.array([at[mask.tobytes()] for mask in tops])
            of_name.append(float(worth[run.full] - worth[masks].mean()))
        drops[f"drop_{name}"] = of_name
    return drops


def _of_evidence(evidence: np.ndarray, claim: Claim, by_chance: bool) -> dict[str, float]:
    """The metrics of evidence that are shown for sources, over a sample's units as others are over tokens."""
    metrics = {name: METRICS[name] for name in shown(UNITS)}
    if by_chance:
        units, marked = np.array([len(evidence)]), np.array([evidence.sum()])
        return {name: float(chance(metric, units, marked)[0]) for name, metric in metrics.items()}
    folds, n = len(claim.relevance), len(evidence)
    every, marks = np.concatenate(claim.relevance), np.tile(evidence, folds)
    scores = score(every, marks, np.ones_like(marks), np.arange(folds + 1) * n, metrics)
    return {name: float(scores.values[name].mean()) for name in metrics}
