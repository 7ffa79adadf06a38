"""Rankings of methods under every two ways in which tokens go."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations

from evaluation.report.evidence import correlated
from evaluation.report.faithfulness import OF_SCORE, WAYS, Drawn
from evaluation.report.results import Results
from evaluation.report.table import Entry, Table
from evaluation.scoring.areas import agreement_of, under_both

WAYS_RANKS = Table(
    "faithfulness_ways",
    "Do rankings depend on the way in which tokens go?",
    "Spearman's rank correlation of methods by mean ΔA under two ways, on the samples that all of them have under "
    "both: 1 where both order them alike, random relevance left out. 95 % bootstrap intervals over samples.",
    ("model", "ways"),
)


def ways_table(drawn: Sequence[Drawn], results: Results, resamples: int, seed: int) -> Table:
    """A row for each model and two ways of its curves, and each number that they follow; none of a single way."""
    return WAYS_RANKS.filled(_correlations(drawn, results, resamples, seed))


def _correlations(drawn: Sequence[Drawn], results: Results, resamples: int, seed: int) -> Iterator[Entry]:
    by_score: dict[tuple[str, ...], list[Drawn]] = defaultdict(list)
    for one in drawn:
        by_score[one.task, one.model, one.dtype, one.score].append(one)
    for (task, model, _, score), ways in by_score.items():
        for one, other in combinations(ways, 2):
            ids, sides = under_both(one.areas, other.areas, results.baselines)
            clusters = results.clusters_of(task, ids)
            agreement = agreement_of(sides[..., 0], sides[..., 1], resamples, seed, clusters)
            names = f"{WAYS[one.perturbation]}, {WAYS[other.perturbation]}"
            yield from correlated(task, (model + OF_SCORE[score], names), agreement)
