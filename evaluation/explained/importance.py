"""The importance of words over a whole data set, by the decision that they speak for."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import scipy

from evaluation.explained.cases import Case, Variant

LEVEL = 0.95
FEWEST = 5  # texts with a word; of fewer there is no interval


class Group(NamedTuple):
    """Cases with one decision of a model, under one method."""

    model: str
    task: str | None
    variant: Variant
    decision: str | None


@dataclass(frozen=True)
class Importance:
    """The mean relevance of a word over the texts that have it, in lower case.

    A text counts once, with the mean over the word's places in it; texts of equal content count once.
    """

    word: str
    texts: int
    mean: float
    low: float | None  # ends of the interval; None: fewer than FEWEST texts
    high: float | None


@dataclass
class _Sums:
    """Of a word in texts: how many, the mean and the sum of squared deviations (Welford 1962)."""

    texts: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, value: float) -> None:
        self.texts += 1
        step = value - self.mean
        self.mean += step / self.texts
        self.squares += step * (value - self.mean)


@dataclass
class Importances:
    """Collects the words of cases by group."""

    texts: dict[Group, int] = field(default_factory=lambda: defaultdict(int))  # of different content
    _sums: dict[Group, dict[str, _Sums]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(_Sums)))
    _met: set[int] = field(default_factory=set)

    def add(self, case: Case) -> None:
        if case.content in self._met:
            return
        self._met.add(case.content)
        for variant, relevance in case.relevance.items():
            group = Group(case.model, case.task, variant, case.decision)
            self.texts[group] += 1
            values = defaultdict[str, list[float]](list)
            for word, value in zip(case.words, relevance.tolist(), strict=False):
                if word.is_counted:
                    values[word.word.lower()].append(value)
            for name, of_word in values.items():
                self._sums[group][name].add(float(np.mean(of_word)))

    def of(self, group: Group) -> list[Importance]:
        """The words of a group, the largest mean first.

        All intervals of a group hold together at LEVEL: Student's t of each word at a level that Bonferroni's
        correction has adjusted for the number of words with an interval.
        """
        sums = self._sums[group]
        compared = sum(each.texts >= FEWEST for each in sums.values())
        told = []
        for word, each in sums.items():
            low = high = None
            if each.texts >= FEWEST:
                error = np.sqrt(each.squares / (each.texts - 1) / each.texts)
                half = float(scipy.stats.t.ppf(1 - (1 - LEVEL) / 2 / compared, each.texts - 1) * error)
                low, high = each.mean - half, each.mean + half
            told.append(Importance(word, each.texts, each.mean, low, high))
        return sorted(told, key=lambda one: (-one.mean, one.word))

    def table(self) -> pa.Table:
        """A row for each group and word."""
        rows = []
        for group, texts in self.texts.items():
            facts = {"model": group.model, "task": group.task, **group.variant._asdict(), "decision": group.decision}
            rows += [facts | {"texts_of_decision": texts, **vars(each)} for each in self.of(group)]
        return pa.Table.from_pylist(rows)
