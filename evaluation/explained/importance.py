"""The importance of words over a whole data set: their mean relevance, by the model's decision."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import scipy

from evaluation.explained.cases import Case, Variant

LEVEL = 0.95
FEWEST = 5  # texts with a word; a mean over fewer has no interval


class Group(NamedTuple):
    """The cases of a model and task with the same decision, as one variant of a method explains them."""

    model: str
    task: str | None
    variant: Variant
    decision: str | None


@dataclass(frozen=True)
class Importance:
    """The mean relevance of a word, in lower case, over the texts that contain it.

    A text counts once, with the mean over the word's occurrences in it; texts of equal content count once.
    """

    word: str
    texts: int
    mean: float
    low: float | None  # ends of the interval; None: fewer than FEWEST texts
    high: float | None


@dataclass
class _Sums:
    """The number of texts with a word, its mean relevance, and the sum of squared deviations (Welford 1962)."""

    texts: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, value: float) -> None:
        """Adds a text, in which the word has the mean relevance `value`."""
        self.texts += 1
        step = value - self.mean
        self.mean += step / self.texts
        self.squares += step * (value - self.mean)


@dataclass
class Importances:
    """Collects the relevance of words by group, case by case."""

    texts: dict[Group, int] = field(default_factory=lambda: defaultdict(int))  # number of texts of different content
    _sums: dict[Group, dict[str, _Sums]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(_Sums)))
    _met: set[int] = field(default_factory=set)  # `Case.content` of the cases that were added

    def add(self, case: Case) -> None:
        """Adds the words of a case; a case with the content of an earlier one changes nothing."""
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

        Intervals are by Student's t. Bonferroni's correction for the number of words with an interval makes all of them
        hold together with probability LEVEL.
        """
        sums = self._sums[group]
        compared = sum(each.texts >= FEWEST for each in sums.values())
        words = []
        for word, each in sums.items():
            low = high = None
            if each.texts >= FEWEST:
                error = np.sqrt(each.squares / (each.texts - 1) / each.texts)
                half = float(scipy.stats.t.ppf(1 - (1 - LEVEL) / 2 / compared, each.texts - 1) * error)
                low, high = each.mean - half, each.mean + half
            words.append(Importance(word, each.texts, each.mean, low, high))
        return sorted(words, key=lambda importance: (-importance.mean, importance.word))

    def table(self) -> pa.Table:
        """A row for each group and word: the group's fields, its number of texts, and the word's `Importance`."""
        rows = []
        for group, texts in self.texts.items():
            facts = {"model": group.model, "task": group.task, **group.variant._asdict(), "decision": group.decision}
            rows += [facts | {"texts_of_decision": texts, **vars(each)} for each in self.of(group)]
        return pa.Table.from_pylist(rows)
