"""The chance level of every metric: its expected value for random relevance.

Random relevance is independent between tokens, symmetric about zero and continuous: every order of the tokens is
equally likely, and each token is positive with probability 1/2. Most metrics then have a closed form, a function of n
tokens of which g are evidence. For metrics that also depend on the size of relevance, the chance level is a mean over
draws of uniform relevance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
import pyarrow as pa
import scipy  # its parts are imported when they are first used: scipy.stats takes a while

from closelook.evaluation.scoring.metrics import Metric, mean_overlap, score
from closelook.evaluation.scoring.samples import Masks

DRAWS = 400  # of random relevance, for metrics without a closed form


def _share(n: int, g: int) -> float:
    """The share of tokens that are evidence."""
    return g / n


def _top_two(n: int, g: int) -> float:
    """The probability that at least one of two tokens drawn without replacement is evidence."""
    return float(1 - scipy.special.comb(n - g, 2) / scipy.special.comb(n, 2)) if n > 1 else 1.0


def _mass(n: int, g: int) -> float:
    """g / n if any relevance is positive, by symmetry among tokens; else 0."""
    return (1 - 2.0**-n) * g / n


def _reciprocal_rank(n: int, g: int) -> float:
    """The mean of 1 / r over the rank r of the first evidence token, whose probability is C(n - r, g - 1) / C(n, g)."""
    probabilities, none_before = [], 1.0
    for rank in range(1, n - g + 2):  # drawn without replacement: no token before this rank is evidence
        probabilities.append(none_before * g / (n - rank + 1))
        none_before *= (n - g - rank + 1) / (n - rank + 1)
    return float(np.array(probabilities) @ (1 / np.arange(1, n - g + 2)))


def _precision(n: int, g: int) -> float:
    """The mean precision over the rank k of an evidence token, before which (k - 1)(g - 1) / (n - 1) are evidence."""
    before = np.arange(n)
    evidence = before * (g - 1) / max(1, n - 1)
    return float(((1 + evidence) / (before + 1)).mean())


@cache
def _overlap(n: int, g: int, most: int) -> float:
    """Expected IoU of the evidence and the largest positive tokens, at most `most` of them.

    The number of positive tokens is binomial; given it, the number of evidence tokens among them is hypergeometric.
    """
    total = 0.0
    for positive, probability in enumerate(scipy.stats.binom.pmf(np.arange(n + 1), n, 0.5)):
        total += float(probability) * mean_overlap(n, g, min(positive, most))
    return total


#: The chance level of a sample with n tokens, g of them evidence, by metric.
EXACT: dict[str, Callable[[int, int], float]] = {
    "pg": _share,
    "pg2": _top_two,
    "tied_tops": lambda n, g: 0.0,
    "mrr": _reciprocal_rank,
    "mrr_strict": _reciprocal_rank,
    "rma": _mass,
    "pta": lambda n, g: 0.5,
    "iou": lambda n, g: _overlap(n, g, g),
    "iou_positive": lambda n, g: _overlap(n, g, n),
    "rra": _share,
    "ap": _precision,
    "dot": _mass,
    "dot_softmax": _share,  # shares sum to 1 over tokens that are alike
}
EXACT |= {f"{name}_shuffled": EXACT[name] for name in ("rma", "pta", "iou", "iou_positive")}


def chance(metric: Metric, tokens: np.ndarray, evidence: np.ndarray, seed: int = 0) -> np.ndarray:
    """Chance levels [N] of samples from their numbers of chosen `tokens` [N] and of `evidence` tokens [N] among them.

    Each sample has at least one evidence token. `seed` draws relevance for metrics without a closed form.
    """
    pairs, pair_of_sample = np.unique(np.stack([tokens, evidence], axis=1), axis=0, return_inverse=True)
    of_sizes = EXACT.get(metric.name) or partial(_drawn, metric, seed)
    return np.array([of_sizes(n, g) for n, g in pairs.tolist()])[pair_of_sample.ravel()]


def _drawn(metric: Metric, seed: int, n: int, g: int) -> float:
    """A metric's mean over DRAWS of random relevance, uniform between -1 and 1 like that of the method `random`."""
    relevance = np.random.default_rng([seed, n, g]).uniform(-1, 1, DRAWS * n)
    marks = np.tile(np.arange(n) < g, DRAWS)
    scores = score(relevance, marks, np.ones_like(marks), np.arange(DRAWS + 1) * n, {metric.name: metric})
    return float(scores.values[metric.name].astype(float).mean())


@dataclass(frozen=True)
class ChanceLevel:
    """The chance level of a task's samples, shown instead of the scores of a single draw of random relevance."""

    masks: Masks
    seed: int

    def replace_scores(self, scores: pa.Table, tokens: str, scope: str, metrics: Mapping[str, Metric]) -> pa.Table:
        """`scores` with the chance level of each sample in place of its score by each of `metrics`.

        `scores` has a column `sample_id` and one for each metric, computed over the tokens that `tokens` and `scope`
        choose (see `Masks.choices`). A sample without evidence among these tokens keeps its scores.
        """
        [chosen] = [mask for *choice, mask in self.masks.choices() if choice == [tokens, scope]]
        sums = np.cumsum(np.stack([chosen, chosen & self.masks.evidence]), axis=1)
        ends = np.concatenate([np.zeros((2, 1), int), sums], axis=1)[:, self.masks.offsets]
        # For each row of `scores`, the number n of chosen tokens and the number g of evidence tokens among them.
        n, g = np.diff(ends, axis=1)[:, self.masks.find(scores["sample_id"])]
        known = g > 0
        for name, metric in metrics.items():
            values = scores[name].to_numpy().astype(float)
            values[known] = chance(metric, n[known], g[known], self.seed)
            scores = scores.set_column(scores.schema.get_field_index(name), name, pa.array(values))
        return scores
