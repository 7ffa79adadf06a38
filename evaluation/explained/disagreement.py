"""Cases in which methods rank the words of a text differently."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from evaluation.explained.cases import Case
from evaluation.scoring.agreement import agreement_of

FEWEST = 3  # words; texts with fewer are left out, since two words have only two orders


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

    Cases with fewer than FEWEST counted words are skipped, and pairs in which a method gives all words equal relevance.
    """
    for case in cases:
        counted = [at for at, word in enumerate(case.words) if word.is_counted]
        if len(counted) < FEWEST:
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
