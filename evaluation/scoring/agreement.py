"""Agreement of methods: do they rank the tokens of the same samples alike? Shapes: M methods, T tokens, N samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.cluster.hierarchy import average, dendrogram
from scipy.spatial.distance import squareform

from evaluation.scoring.areas import ranks_of


@dataclass(frozen=True)
class MethodAgreement:
    """Spearman's correlation of each two methods over the tokens of a sample, means over samples."""

    methods: tuple[str, ...]
    mean: np.ndarray  # [M, M], 1 on the diagonal
    n: int  # samples

    def tree(self) -> tuple[tuple[str, ...], list[tuple[list[float], list[float]]]]:
        """Methods in the order of a tree by average linkage of 1 - correlation, and its branches as (x, y) of lines.

        Neighbours in the order lie at x = 0, 1, ...; y is the distance at which branches join. Raises ValueError for
        fewer than two methods.
        """
        links = average(squareform(np.clip(1 - self.mean, 0, 2), checks=False))
        drawn = dendrogram(links, no_plot=True)
        branches = [
            ([(x - 5) / 10 for x in across], list(heights))  # scipy puts leaves at 5, 15, 25 ...
            for across, heights in zip(drawn["icoord"], drawn["dcoord"], strict=True)
        ]
        return tuple(self.methods[at] for at in drawn["leaves"]), branches


def agreement_of(relevance: Mapping[str, Mapping[str, np.ndarray]], samples: Sequence[str]) -> MethodAgreement | None:
    """The agreement of methods by their relevance [T] of each of `samples`; None without two methods and a sample.

    A sample counts where all methods have an order of its tokens: several tokens, finite relevance, not all equal.

    >>> same = {"a": {"s": np.array([1.0, 2.0, 3.0])}, "b": {"s": np.array([0.1, 0.2, 0.9])}}
    >>> agreement_of(same, ["s"]).mean.round(9).tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    correlations = []
    for sample in samples:
        maps = np.array([of_method[sample] for of_method in relevance.values()], np.float64)  # [M, T]
        if maps.shape[1] < 2 or not np.isfinite(maps).all():
            continue
        ranks = np.array([ranks_of(values) for values in maps])
        ranks -= ranks.mean(axis=1, keepdims=True)
        spread = np.sqrt((ranks**2).sum(axis=1))
        if spread.all():
            correlations.append((ranks @ ranks.T) / np.outer(spread, spread))
    if len(relevance) < 2 or not correlations:
        return None
    mean = np.mean(correlations, axis=0)
    np.fill_diagonal(mean, 1.0)
    return MethodAgreement(tuple(relevance), mean, len(correlations))
