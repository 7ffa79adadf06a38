"""Agreement of methods: how similarly they rank the tokens of the same samples.

Shapes: M methods, T tokens of a sample, N samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.cluster.hierarchy import average, dendrogram
from scipy.spatial.distance import squareform

from closelook.evaluation.scoring.faithfulness.areas import ranks_of


@dataclass(frozen=True)
class MethodAgreement:
    """Spearman's correlation between every two methods over the tokens of a sample, averaged over samples."""

    methods: tuple[str, ...]
    mean: np.ndarray  # [M, M], 1 on the diagonal
    n: int  # samples in the mean

    def tree(self) -> tuple[tuple[str, ...], list[tuple[list[float], list[float]]]]:
        """Clusters methods by average linkage of the distance 1 - correlation.

        Returns the methods in the order of the tree's leaves, and its branches as the (x, y) coordinates of lines: leaf
        i lies at x = i, and y is the distance at which two branches join. Raises ValueError for fewer than two methods.
        """
        links = average(squareform(np.clip(1 - self.mean, 0, 2), checks=False))
        tree = dendrogram(links, no_plot=True)
        branches = []
        for across, heights in zip(tree["icoord"], tree["dcoord"], strict=True):
            leaves = [(x - 5) / 10 for x in across]  # scipy puts leaves at 5, 15, 25 ...
            branches.append((leaves, list(heights)))
        return tuple(self.methods[leaf] for leaf in tree["leaves"]), branches


def agreement_of(relevance: Mapping[str, Mapping[str, np.ndarray]], samples: Sequence[str]) -> MethodAgreement | None:
    """The agreement of methods, from the relevance [T] of each method for each of `samples`.

    A sample counts if every method orders its tokens: there are at least two, and their relevance is finite and not all
    equal. Returns None for fewer than two methods, or if no sample counts.
    """
    correlations = []
    for sample in samples:
        maps = np.array([by_sample[sample] for by_sample in relevance.values()], np.float64)  # [M, T]
        if maps.shape[1] < 2 or not np.isfinite(maps).all():
            continue
        ranks = np.array([ranks_of(values) for values in maps])
        if np.ptp(ranks, axis=1).all():
            correlations.append(np.corrcoef(ranks))
    if len(relevance) < 2 or not correlations:
        return None
    return MethodAgreement(tuple(relevance), np.mean(correlations, axis=0), len(correlations))
