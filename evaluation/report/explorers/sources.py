"""The explorer of answers: sentences of an answer, and the relevance of the prompt's sources for each, by method."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from markupsafe import Markup

from evaluation.report.explorers.leaves import LEAF_BYTES, Entry, Leaves, escaped_json

SNIPPET = 140  # letters of an answer in the list
#: Columns of the list of answers, in this order; `way` is the way in which sources are ablated.
FIELDS = ("sample_id", "model", "task", "way", "answer")


class MethodSources(NamedTuple):
    """Relevance of n sources by one method: for the whole answer [n], and for each of its P sentences [P, n]."""

    label: str
    whole: Sequence[float]
    parts: Sequence[Sequence[float]]


@dataclass(frozen=True)
class SourcesExplorer:
    """Answers of models, in the order of the entries."""

    index: Leaves  # rows of FIELDS
    entries: Leaves  # of :func:`entry`, numbered as the rows

    @classmethod
    def of(cls, entries: Iterable[Entry], budget_bytes: float = LEAF_BYTES) -> SourcesExplorer:
        """Build the explorer from results of :func:`entry`, which are iterated over once."""
        rows, texts = [], []
        for data in entries:
            answer = data["answer"]
            snippet = answer if len(answer) <= SNIPPET else answer[: SNIPPET - 1] + "…"
            rows.append([*(data[name] for name in FIELDS[:-1]), snippet])
            texts.append(escaped_json(data))
        index = Leaves.of("answers-list", rows, budget_bytes)
        return cls(index, Leaves.of_json("answers", texts, budget_bytes))

    @property
    def count(self) -> int:
        """The number of answers."""
        return self.index.starts[-1]

    @property
    def leaves(self) -> tuple[Leaves, ...]:
        """The leaves of the explorer's page; none without answers."""
        return (self.index, self.entries) if self.count else ()

    @property
    def choices_element(self) -> Markup:
        """The element of the page that names the columns of the list, beside its leaves."""
        return Markup('<script type="application/json" id="answer-choices">{}</script>').format(
            Markup(escaped_json({"fields": FIELDS}))
        )


def entry(
    prompt: str,
    units: Sequence[Sequence[int]],
    answer: str,
    sentences: Sequence[Sequence[int]],
    methods: Sequence[MethodSources],
    *,
    evidence: Sequence[bool] | None = None,
    turns: Sequence[Sequence[Any]] | None = None,
    pair: tuple[int, int] = (0, 1),
    **facts: Any,
) -> Entry:
    """The data of `sources.js`: a prompt with its units, an answer with its sentences, both as spans of characters.

    `pair` are the two of `methods` that are shown side by side at first; `turns` are (role, start, end) of a chat's
    messages. `facts` are sample_id, model, task, way, and `untrained` for a model of random weights.
    """
    rows = []
    for method in methods:
        parts = [[_short(value) for value in part] for part in method.parts]
        rows.append({"label": method.label, "whole": [_short(value) for value in method.whole], "parts": parts})
    defaults: dict[str, Any] = {**dict.fromkeys(("sample_id", "model", "task", "way"), ""), "untrained": False}
    first, second = pair
    last = len(rows) - 1
    return {
        **defaults,
        **facts,
        "prompt": prompt,
        "turns": turns,
        "units": list(map(list, units)),
        "evidence": None if evidence is None else list(map(int, evidence)),
        "answer": answer,
        "sentences": list(map(list, sentences)),
        "rows": rows,
        "pair": [min(first, last), min(second, last)],
    }


def _short(value: float) -> float:
    """The value rounded to four digits."""
    return float(f"{value:.4g}")
