"""The agreement of rankings of methods between every two perturbations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations

from evaluation.report.results import Results
from evaluation.report.sections.evidence import correlated
from evaluation.report.sections.faithfulness import OF_SCORE, WAYS, CurveSet
from evaluation.report.table import Entry, Table
from evaluation.scoring.faithfulness.areas import agreement_of, under_both

WAYS_RANKS = Table(
    "faithfulness_ways",
    "Do rankings depend on how tokens are removed?",
    "Spearman's rank correlation between the methods' mean ΔA under two ways of removing tokens, on the samples that "
    "all methods have under both: 1 if both ways order the methods alike. Random relevance is left out. "
    "95 % bootstrap intervals over samples.",
    ("model", "ways"),
)


def ways_table(curve_sets: Sequence[CurveSet], results: Results, resamples: int, seed: int) -> Table:
    """A row for each model, each pair of perturbations, and each number that curves follow.

    The table has no rows if there is a single perturbation.
    """
    return WAYS_RANKS.filled(_correlations(curve_sets, results, resamples, seed))


def _correlations(curve_sets: Sequence[CurveSet], results: Results, resamples: int, seed: int) -> Iterator[Entry]:
    """The cells of `ways_table`."""
    by_score: dict[tuple[str, ...], list[CurveSet]] = defaultdict(list)
    for curve_set in curve_sets:
        by_score[curve_set.task, curve_set.model, curve_set.dtype, curve_set.score].append(curve_set)
    for (task, model, _, score), of_score in by_score.items():
        for first, second in combinations(of_score, 2):
            ids, deltas = under_both(first.areas, second.areas, results.baselines)
            clusters = results.clusters_of(task, ids)
            agreement = agreement_of(deltas[..., 0], deltas[..., 1], resamples, seed, clusters)
            names = f"{WAYS[first.perturbation]}, {WAYS[second.perturbation]}"
            yield from correlated(task, (model + OF_SCORE[score], names), agreement)
