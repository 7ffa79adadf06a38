"""Cases, read from tables of words: a text, the model's decision, and the relevance of its words by every method.

Cases on which two methods disagree are told by their agreement. The importance of a word is its mean relevance over a
whole data set, by the model's decision.

Shapes: W words of a case.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import scipy

from closelook.evaluation.explained.rows import TEXT, Name
from closelook.evaluation.scoring.agreement import agreement_of

FEWEST_WORDS = 3  # words; texts with fewer are left out, since two words have only two orders
LEVEL = 0.95
FEWEST = 5  # texts with a word; a mean over fewer has no interval
_OF_CASE = ("id", "row", "model", "task", "decision", "against", "probability")  # equal in all rows of a case


class Variant(NamedTuple):
    """A method with its explanation and its embeddings (see the glossary)."""

    method: str
    explanation: str
    embedding: str


class Word(NamedTuple):
    """A word of a text: the characters [start, end) of its side, or None for a word without characters there."""

    word: str
    side: str
    start: int | None
    end: int | None
    special: bool  # True for a token that the tokenizer's template added

    @property
    def is_counted(self) -> bool:
        """True for a word of the text itself with a letter or digit: it counts in means and rankings."""
        return not self.special and self.start is not None and any(map(str.isalnum, self.word))


@dataclass(frozen=True)
class Case:
    """A text and the model's decision, with the relevance [W] of its words by variant.

    The words of an encoder-decoder end with those that its decoder has seen. A method that gives these no relevance has
    fewer numbers than there are words.
    """

    name: Name
    model: str
    task: str | None
    decision: str | None  # the predicted label or token; None if the model predicts a score
    against: str | None  # the label or token that the decision is compared with
    probability: float | None  # of the decision
    words: Sequence[Word]
    relevance: dict[Variant, np.ndarray]

    @property
    def content(self) -> int:
        """A hash that is equal for the same text with the same decision of the same model and task."""
        return hash((self.model, self.task, self.decision, *(word.word for word in self.words)))

    @property
    def by_method(self) -> dict[str, np.ndarray]:
        """The relevance by method; of a method with several variants, the one that comes first in the file."""
        first: dict[str, np.ndarray] = {}
        for variant, values in self.relevance.items():
            first.setdefault(variant.method, values)
        return first


def cases(table: pa.Table) -> Iterator[Case]:
    """The cases of a table of the schema WORDS, in its order.

    The rows of a case are together, variant by variant, and those of a variant begin with the first word of the text.
    """
    sides, numbers = table["side"].to_pylist(), table["at"].to_numpy()
    starts = [at for at in np.flatnonzero(numbers == 0).tolist() if sides[at] == TEXT]
    if not starts:
        return
    columns = {name: table[name].take(pa.array(starts)).to_pylist() for name in (*_OF_CASE, *Variant._fields)}
    relevance = table["relevance"].to_numpy()
    words = list(map(Word, *(table[name].to_pylist() for name in Word._fields)))
    ends = [*starts[1:], table.num_rows]
    case: Case | None = None
    for at, (start, end) in enumerate(zip(starts, ends, strict=True)):
        facts: dict[str, Any] = {name: columns[name][at] for name in _OF_CASE}
        variant = Variant(*(columns[name][at] for name in Variant._fields))
        name = Name(facts.pop("id"), facts.pop("row"))
        of_case = words[start:end]
        if case is None or variant in case.relevance or not _is_same(case, name, facts):
            if case is not None:
                yield case
            case = Case(name, **facts, words=of_case, relevance={})
        elif len(of_case) > len(case.words):
            case = Case(name, **facts, words=of_case, relevance=case.relevance)
        case.relevance[variant] = relevance[start:end]
    if case is not None:
        yield case


def _is_same(case: Case, name: Name, facts: dict[str, Any]) -> bool:
    """True if a row with this name and these values of _OF_CASE belongs to the case."""
    return case.name == name and all(getattr(case, field) == value for field, value in facts.items())


@dataclass(frozen=True)
class Disagreement:
    """Two methods on a case: Spearman's correlation of their relevance over the counted words, and their top words."""

    id: str
    row: int | None
    model: str
    task: str | None
    decision: str | None
    first: str  # methods
    second: str
    correlation: float
    first_word: str
    second_word: str


def disagreements(cases: Iterable[Case]) -> Iterator[Disagreement]:
    """The disagreement of every two methods on each case; a method with several variants is taken by its first.

    Cases with fewer than FEWEST_WORDS counted words are skipped, and so are pairs in which a method gives all words
    equal relevance.
    """
    for case in cases:
        counted = [at for at, word in enumerate(case.words) if word.is_counted]
        if len(counted) < FEWEST_WORDS:
            continue
        by_method = {method: values[counted] for method, values in case.by_method.items()}
        for first, second in combinations(sorted(by_method), 2):
            both = {name: {"case": by_method[name]} for name in (first, second)}
            agreement = agreement_of(both, ["case"])
            if agreement is None:
                continue
            tops = [case.words[counted[int(np.argmax(by_method[name]))]].word for name in (first, second)]
            correlation = float(agreement.mean[0, 1])
            facts = (*case.name, case.model, case.task, case.decision)
            yield Disagreement(*facts, first, second, correlation, *tops)


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
