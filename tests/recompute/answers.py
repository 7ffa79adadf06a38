"""Relevance of the sources of answers, and the numbers that judge it, from stored ablations and relevance of tokens.

Slow and apart from the product: `definitions-2.md` 2 in numpy, one sample and one mask at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from tests.oracles.sources import lasso
from tests.recompute import metrics, statistics
from tests.recompute.facts import Facts

ALPHA = 0.01  # of ContextCite's Lasso
BUDGETS = (32, 64, 128)
DROPPED = (1, 3, 5)
FEWEST = 4  # units that have a linear datamodeling score
EVIDENCE = ("pg", "mrr", "ap")
ROUNDING = 1e-5  # of numbers of single precision that are equal on paper
SHAPLEY = "shap_units"  # the name of Kernel SHAP of units in a run
MADE_OF_ABLATIONS = ("contextcite", "leave_one_out", SHAPLEY)

Cell = tuple[str, str, str]  # model, task, way
Row = Mapping[str, Any]


class Variant(NamedTuple):
    """A method's relevance of units: of one explanation, one budget of masks (0: its own), or screened by k units."""

    method: str
    explanation: str
    budget: int = 0
    screened: int = 0


class Claim(NamedTuple):
    """The relevance of a sample's units in each fold, and the number of ablated prompts that it is made of."""

    folds: list[np.ndarray]
    prompts: int


class Worths:
    """L, F and y of the answer after every mask of a sample."""

    def __init__(self, row: Row) -> None:
        odds = _matrix(row["log_odds"])
        self.kept = _matrix(row["kept"]).astype(bool)
        self.l = -np.log1p(np.exp(-np.abs(odds))).sum(1) + np.minimum(odds, 0).sum(1)
        self.f = _matrix(row["logits"]).sum(1)
        certain = -np.log(np.exp(-odds - (-odds).max(1, keepdims=True)).sum(1)) - (-odds).max(1)
        complement = np.log(-np.expm1(np.minimum(self.l, -1e-9)))
        self.y = np.where(self.l > -1e-9, certain, self.l - complement)
        self.tokens = odds.shape[1]
        self.full, self.without = int(row["full"]), np.array(row["without"], int)
        halves = [np.array(row[name], int) for name in ("fit", "judge")]
        #: (masks to fit to, masks that judge) of each fold
        self.folds = [(halves[0], halves[1])] + ([(halves[1], halves[0])] if row["swapped"] else [])
        self.swapped = bool(row["swapped"])
        self.shapley = np.array(row["shapley"], int)
        self.weights = np.array(row["shapley_weights"], float)
        self.random = {gone: np.array(sets, int) for gone, sets in zip(row["random_gone"], row["random"], strict=True)}

    @property
    def units(self) -> int:
        return self.kept.shape[1]

    def mask(self, kept: np.ndarray) -> int | None:
        """The number of a mask, if it was run."""
        [same] = np.nonzero((self.kept == kept).all(1))
        return int(same[0]) if len(same) else None


def _matrix(values: Any) -> np.ndarray:
    return np.stack([np.asarray(row, float) for row in values])


@cache
def worths(facts: Facts, cell: Cell) -> dict[str, Worths]:
    """The ablations of every sample of a model, task and way."""
    frame = facts.root.frame("ablations")
    names = dict(zip(("model", "task", "method"), cell, strict=True))
    for name, value in names.items():
        frame = frame[frame[name] == value]
    return {row["sample_id"]: Worths(row) for row in frame.to_dict("records")}


@cache
def stored(facts: Facts, cell: Cell) -> dict[tuple[Variant, str], Row]:
    """Stored rows of sources by variant and sample; rows without drops are screened, or of a smaller budget."""
    frame = facts.root.frame("sources")
    kept = (frame["model"] == cell[0]) & (frame["task"] == cell[1]) & (frame["way"] == cell[2])
    rows = {}
    for row in frame[kept].to_dict("records"):
        whole = len(row["drop_l"]) > 0
        screened = row["ablated"] - 1 if row["screened"] else 0
        budget = 0 if whole or row["screened"] else row["ablated"]
        rows[Variant(row["method"], row["explanation"], budget, screened), row["sample_id"]] = row
    return rows


def variants(facts: Facts, cell: Cell) -> list[Variant]:
    return list(dict.fromkeys(variant for variant, _ in stored(facts, cell)))


@cache
def claims(facts: Facts, cell: Cell, variant: Variant) -> dict[str, Claim]:
    """The relevance of units by a variant, of every sample that has it."""
    made: dict[str, Claim] = {}
    for sample, of_sample in worths(facts, cell).items():
        claim = _claim(facts, cell, variant, sample, of_sample)
        if claim is not None:
            made[sample] = claim
    return made


def _claim(facts: Facts, cell: Cell, variant: Variant, sample: str, of_sample: Worths) -> Claim | None:
    if variant.screened:
        if variant.screened > of_sample.units:
            return None
        whole = claims(facts, cell, variant._replace(screened=0))[sample]
        drops = of_sample.y[of_sample.full] - of_sample.y[of_sample.without]
        order = np.argsort(-whole.folds[0], kind="stable")[: variant.screened]
        chosen = np.isin(np.arange(of_sample.units), order)
        return Claim([np.where(chosen, drops, 0.0)] * len(of_sample.folds), variant.screened + 1)
    if variant.method == "contextcite":
        return _cited(variant.budget, of_sample)
    if variant.method == "leave_one_out":
        return Claim(
            [of_sample.y[of_sample.full] - of_sample.y[of_sample.without]] * len(of_sample.folds), of_sample.units + 1
        )
    if variant.method == SHAPLEY:
        worth = of_sample.f if variant.explanation == "target" else of_sample.l
        return Claim([_shapley(of_sample, worth)] * len(of_sample.folds), 1 + len(of_sample.shapley))
    tokens = _tokens(facts, cell, variant, sample)
    if tokens is None:
        return None
    units = np.array(_view(facts, cell, sample)["units"])
    return Claim([np.array([tokens[units == unit].sum() for unit in range(of_sample.units)])] * len(of_sample.folds), 0)


def _cited(budget: int, of_sample: Worths) -> Claim | None:
    """ContextCite fitted to the first masks; of samples whose masks are all run there is no smaller budget."""
    if budget and (of_sample.swapped or budget >= len(of_sample.folds[0][0])):
        return None
    folds, used = [], 0
    for fit, _ in of_sample.folds:
        masks = fit[:budget] if budget else fit[: max(BUDGETS)]
        folds.append(lasso(of_sample.kept[masks], of_sample.y[masks] / of_sample.tokens, ALPHA) * of_sample.tokens)
        used = used or len(masks)
    return Claim(folds, used)


def _shapley(of_sample: Worths, worth: np.ndarray) -> np.ndarray:
    """Shapley values by weighted least squares on pairs of sets, under the constraint that they sum to the whole gain.

    The constraint is met by a Lagrange multiplier. Of several solutions the nearest to equal shares is taken.
    """
    pairs = len(of_sample.weights)
    sets = of_sample.kept[of_sample.shapley[1 : 1 + pairs]]
    values, complements = worth[of_sample.shapley[1 : 1 + pairs]], worth[of_sample.shapley[1 + pairs :]]
    gain = worth[of_sample.full] - worth[of_sample.shapley[0]]
    signs = 2.0 * sets - 1
    matrix, target = signs * np.sqrt(of_sample.weights)[:, None], (values - complements) * np.sqrt(of_sample.weights)
    n = of_sample.units
    start = np.full(n, gain / n)
    basis = np.linalg.svd(np.ones((1, n)))[2][1:].T  # directions of which the sum is 0
    step = np.linalg.lstsq(matrix @ basis, target - matrix @ start, rcond=1e-10)[0]
    return start + basis @ step


def _view(facts: Facts, cell: Cell, sample: str) -> Row:
    tokenizers = {name[0]: tokenizer for name, tokenizer in facts.root.tokenizers.items() if name[1] == cell[1]}
    return facts.root.views[tokenizers[cell[0]], cell[1]][sample]


@cache
def _relevance(facts: Facts, model: str, task: str, method: str, explanation: str) -> dict[str, np.ndarray]:
    rows = facts.cells[model, task, facts.dtype(model, task), method]
    rows = rows[rows["explanation"] == explanation]
    first = rows["embedding"].iloc[0] if len(rows) else ""
    known = rows[rows["embedding"] == first]
    return {row.sample_id: np.array(row.relevance, float) for row in known.itertuples()}


def _tokens(facts: Facts, cell: Cell, variant: Variant, sample: str) -> np.ndarray | None:
    return _relevance(facts, *cell[:2], variant.method, variant.explanation).get(sample)


def lds(relevance: np.ndarray, kept: np.ndarray, worth: np.ndarray) -> float:
    """Spearman's correlation over judging masks; 0 of relevance that is the same for all, NaN of such a worth."""
    ranks = _ranks(worth)
    if len(relevance) < FEWEST or np.ptp(ranks) == 0:
        return np.nan
    sums = [float(relevance[mask].sum()) for mask in kept]
    size = np.abs(relevance).sum()
    sum_ranks = stats.rankdata(np.round(np.array(sums) / size, 12)) if size else np.zeros(len(sums))
    return 0.0 if np.ptp(sum_ranks) == 0 else float(np.corrcoef(sum_ranks, ranks)[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks of which numbers that are equal but for rounding share the mean."""
    ranks = []
    for value in values:
        margin = ROUNDING * np.maximum(abs(value), np.abs(values))
        ranks.append(((value - values > margin).sum() + (value - values >= -margin).sum() - 1) / 2)
    return np.array(ranks)


def infidelity(relevance: np.ndarray, kept: np.ndarray, worth: np.ndarray, full: float) -> float:
    x = np.array([relevance[~mask].sum() for mask in kept])
    d = full - worth
    if not d.any():
        return np.nan
    scale = 1.0 if not x.any() else max(0.0, float(x @ d) / float(x @ x))
    return float(np.mean((scale * x - d) ** 2) / np.mean(d**2))


@cache
def numbers(facts: Facts, cell: Cell, variant: Variant) -> pd.DataFrame:
    """Every number that judges a variant, a row a sample; of random relevance those that are expected."""
    rows = {}
    for sample, claim in claims(facts, cell, variant).items():
        of_sample = worths(facts, cell)[sample]
        row = _of_masks(of_sample, claim, by_chance=variant.method == "random")
        if not variant.budget and not variant.screened:
            row |= dict(_drops(of_sample, claim, stored(facts, cell)[variant, sample], variant.method == "random"))
            row |= _of_evidence(_view(facts, cell, sample)["unit_evidence"], claim, variant.method == "random")
        rows[sample] = row
    return pd.DataFrame.from_dict(rows, orient="index").sort_index()


def _of_masks(of_sample: Worths, claim: Claim, by_chance: bool) -> dict[str, float]:
    row = {}
    for name in ("l", "f"):
        worth = getattr(of_sample, name)
        pairs = [(relevance, judge) for relevance, (_, judge) in zip(claim.folds, of_sample.folds, strict=True)]
        correlations = [lds(relevance, of_sample.kept[judge], worth[judge]) for relevance, judge in pairs]
        row[f"lds_{name}"] = _mean(correlations) * (0.0 if by_chance else 1.0)
        errors = [
            infidelity(relevance, of_sample.kept[judge], worth[judge], worth[of_sample.full])
            for relevance, judge in pairs
        ]
        row[f"infidelity_{name}"] = _mean(errors)
    return row


def _mean(values: list[float]) -> float:
    known = [value for value in values if not np.isnan(value)]
    return float(np.mean(known)) if known else np.nan


def _drops(of_sample: Worths, claim: Claim, of_store: Row, by_chance: bool) -> Iterator[tuple[str, float]]:
    """Drops without the k units of highest relevance. Masks that only this product ran are known by what it stored."""
    for at, count in enumerate(count for count in DROPPED if count < of_sample.units):
        for name in ("l", "f", "y"):
            worth = getattr(of_sample, name)
            if by_chance:
                masks = of_sample.without if count == 1 else of_sample.random[count]
            else:
                masks = [_without_top(of_sample, relevance, count) for relevance in claim.folds]
            if any(mask is None for mask in masks):
                yield f"drop_{name}_{count}", float(of_store[f"drop_{name}"][at])
            else:
                yield f"drop_{name}_{count}", float(worth[of_sample.full] - np.mean(worth[np.array(masks)]))


def _without_top(of_sample: Worths, relevance: np.ndarray, count: int) -> int | None:
    """The mask without the top units, if it was run and no tie decides which they are."""
    order = np.argsort(-relevance, kind="stable")
    if relevance[order[count - 1]] == relevance[order[count]]:
        return None
    kept = np.ones(of_sample.units, bool)
    kept[order[:count]] = False
    return of_sample.mask(kept)


def _of_evidence(evidence: Any, claim: Claim, by_chance: bool) -> dict[str, float]:
    if evidence is None:
        return {}
    marks = np.array(evidence, bool)
    if by_chance:
        return {name: float(statistics.chance(name, len(marks), int(marks.sum())) or 0.0) for name in EVIDENCE}
    scored = {name: [metrics.SPECIFIED[name](relevance, marks) for relevance in claim.folds] for name in EVIDENCE}
    return {name: float(np.mean(values)) for name, values in scored.items()}
