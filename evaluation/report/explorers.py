"""Explorers: pages with a list and filters over more records of samples, neurons or answers than one page holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from markupsafe import Markup

from closelook.evaluation.report.heatmaps.tokens import short
from closelook.evaluation.report.leaves import LEAF_BYTES, Entry, Leaves, escaped_json

SNIPPET = 140  # characters of a text in a list
#: The fields of a line of the list, by kind of record. A sample is one under a model. `ranked` of a neuron has [place,
#: mean relevance, samples] for each place of the choices, which is a task under a method; `way` of an answer is the way
#: in which sources are ablated.
FIELDS = {
    "sample": ("sample_id", "model", "task", "correct", "attractors", "disagreement", "text"),
    "neuron": ("model", "layer", "neuron", "name", "ranked"),
    "answer": ("sample_id", "model", "task", "way", "answer"),
}
Columns = Mapping[str, Sequence[Any]]  # the values of all lines by field


@dataclass(frozen=True)
class Explorer:
    """Records that an explorer shows, in the order of its list."""

    kind: str  # of its records, a key of FIELDS
    index: Leaves  # lines of the list
    entries: Leaves  # the records, numbered as the lines
    choices: Mapping[str, Any]  # for the page's script: the values of the filters by field, and further facts
    names: frozenset[str]  # the distinct values of the first field

    @classmethod
    def of(
        cls,
        kind: str,
        entries: Iterable[Entry],
        choices: Callable[[Columns], Mapping[str, Any]] = lambda columns: {},
        budget_bytes: float = LEAF_BYTES,
    ) -> Explorer:
        """The explorer of `entries`, which are iterated once: only their JSON and the lines are kept in memory.

        `choices` makes the choices from the values of all lines.
        """
        texts, columns = [], {name: list[Any]() for name in FIELDS[kind]}
        for entry in entries:
            texts.append(escaped_json(entry))
            for name, values in columns.items():
                values.append(_snippet(entry[name]))
        lines = zip(*columns.values(), strict=True)
        index = Leaves.of(f"{kind}s-list", lines, budget_bytes)
        records = Leaves.of_json(f"{kind}s", texts, budget_bytes)
        return cls(kind, index, records, choices(columns), frozenset(columns[FIELDS[kind][0]]))

    @property
    def count(self) -> int:
        """The number of lines."""
        return self.index.starts[-1]

    @property
    def leaves(self) -> tuple[Leaves, Leaves]:
        """The leaves of the explorer's page."""
        return self.index, self.entries

    @property
    def choices_element(self) -> Markup:
        """The script element of the explorer's page that holds the fields of its list and the choices as JSON."""
        choices = Markup(escaped_json({"fields": FIELDS[self.kind], **self.choices}))
        return Markup('<script type="application/json" id="{}-choices">{}</script>').format(self.kind, choices)


def _snippet(value: Any) -> Any:
    """A value of a line: of a text the beginning, of at most SNIPPET characters."""
    is_long = isinstance(value, str) and len(value) > SNIPPET
    return value[: SNIPPET - 1] + "…" if is_long else value


def sample_explorer(entries: Iterable[Entry], budget_bytes: float = LEAF_BYTES) -> Explorer:
    """The explorer of `entries`, data of :func:`heatmaps.tokens.data`, in which a sample's follow each other."""
    explanations: dict[str, None] = {}

    def noted() -> Iterator[Entry]:
        """The entries, whose explanations are noted."""
        for entry in entries:
            explanations.update(dict.fromkeys(row["explanation"] for row in entry["rows"]))
            yield entry

    def choices(columns: Columns) -> dict[str, Any]:
        """The distinct values of each filter."""
        known = {name: list(dict.fromkeys(columns[name])) for name in ("task", "model", "attractors")}
        filters = {name: [value for value in values if value is not None] for name, values in known.items()}
        filters["attractors"].sort(key=lambda value: (str(type(value)), value))
        return filters | {"explanation": [name for name in explanations if name != "none"]}

    return Explorer.of("sample", noted(), choices, budget_bytes)


def neuron_explorer(entries: Iterable[Entry], places: Sequence[str]) -> Explorer:
    """The explorer of `entries`, facts of :func:`neuron_entry`.

    `places` are the tasks and methods that `ranked` counts by index.
    """

    def choices(columns: Columns) -> dict[str, Any]:
        """The places, and the layers of each model."""
        models: dict[str, set[int]] = {}
        for model, layer in zip(columns["model"], columns["layer"], strict=True):
            models.setdefault(model, set()).add(layer)
        return {"places": list(places), "models": {name: sorted(layers) for name, layers in models.items()}}

    return Explorer.of("neuron", entries, choices)


def neuron_entry(model: str, layer: int, neuron: int, ranked: Sequence[tuple[int, float, int]], **known: Any) -> Entry:
    """The facts of a neuron on the page, as JSON.

    `ranked` are (place, mean relevance, samples); a place is the index of a task under a method in the explorer's
    `places`. `known` are further facts, each of which may be absent:

    * `name`: if it is not `layer.neuron`
    * `contexts`: max-activating examples of :func:`shown`, each with its `activation`, from the largest on;
      `corpus`: the name of their corpus; `explained`: the label of the method that explains the activation in them
    * `samples`: of :func:`shown`, each with `id`, `task`, `method`, `relevance` and `activation`
    """
    unknown: dict[str, Any] = {"contexts": [], "corpus": "", "explained": "", "samples": []}
    unknown["name"] = f"{layer}.{neuron}"
    rounded = [[task_method, short(mean), samples] for task_method, mean, samples in ranked]
    return {"model": model, "layer": layer, "neuron": neuron, "ranked": rounded, **unknown, **known}


def shown(
    tokens: Sequence[str], position: int, around: int, values: Sequence[float] | None = None, **facts: Any
) -> Entry:
    """A text with the position at which a neuron is active, as JSON, with further `facts`.

    `around` is the number of tokens that are shown on either side of the position. `values` are the relevance of the
    tokens for the activation.

    >>> shown(["The", " keys", " to", " the"], 2, 1)
    {'tokens': ['…', ' keys', ' to', ' the'], 'position': 2}
    """
    start, end = max(0, position - around), position + around + 1
    before = ["…"] if start else []
    after = ["…"] if end < len(tokens) else []
    text: dict[str, Any] = {"tokens": [*before, *tokens[start:end], *after]}
    if values is not None:
        text["values"] = [0.0] * len(before) + [short(value) for value in values[start:end]]
    return text | {"position": position - start + len(before)} | facts


class MethodSources(NamedTuple):
    """Relevance of n units by one method: for the whole answer [n], and for each of its P sentences [P, n]."""

    label: str
    whole: Sequence[float]
    parts: Sequence[Sequence[float]]


def answer_entry(
    prompt: str,
    units: Sequence[Sequence[int]],
    answer: str,
    sentences: Sequence[Sequence[int]],
    methods: Sequence[MethodSources],
    *,
    evidence: Sequence[bool] | None,
    turns: Sequence[Sequence[Any]] | None,
    pair: tuple[int, int],
    **facts: Any,
) -> Entry:
    """The data of `sources.js`: a prompt with its `units` [n], an answer with its `sentences` [P], as character spans.

    A unit is a source, or a part of one that is ablated alone; `evidence` [n] marks the units known to be sources. The
    two `methods` with the indices `pair` are shown first; `turns` are (role, start, end) of a chat's messages. `facts`
    are sample_id, model, task, way, and `untrained` for a model of random weights.
    """
    rows = []
    for method in methods:
        parts = [list(map(short, part)) for part in method.parts]
        rows.append({"label": method.label, "whole": list(map(short, method.whole)), "parts": parts})
    return {
        **facts,
        "prompt": prompt,
        "turns": turns,
        "units": list(map(list, units)),
        "evidence": None if evidence is None else list(map(int, evidence)),
        "answer": answer,
        "sentences": list(map(list, sentences)),
        "rows": rows,
        "pair": [min(at, len(rows) - 1) for at in pair],
    }
