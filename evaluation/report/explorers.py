"""Explorers: pages with a list and filters over more records of samples, neurons or answers than one page holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from markupsafe import Markup

from closelook.evaluation.report.heatmaps.tokens import short
from closelook.evaluation.report.leaves import LEAF_BYTES, Entry, Leaves, escaped_json

SNIPPET = 140  # characters of a text in a list
#: The fields of a line of the list of samples, which is a sample under a model; `disagreement` is in percent.
SAMPLE_FIELDS = ("id", "model", "task", "correct", "attractors", "disagreement", "text")
#: The fields of a line of the list of neurons. `ranked` has [place, mean relevance, samples] for each place of the
#: choices, which is a task under a method.
NEURON_FIELDS = ("model", "layer", "neuron", "name", "ranked")
#: Columns of the list of answers, in this order; `way` is the way in which sources are ablated.
ANSWER_FIELDS = ("sample_id", "model", "task", "way", "answer")
#: The page's heading of the effect of ablating a neuron, by the config's name of the value of ablated neurons.
WITHOUT = {"zero": "Ablation: without it", "mean": "Ablation: with its mean over the corpus"}


@dataclass(frozen=True)
class Explored:
    """Records that an explorer shows, in the order of its list."""

    index: Leaves  # lines of `fields`
    entries: Leaves  # the records, numbered as the lines
    choices: Mapping[str, Any]  # for the page's script: the values of the filters by field, and further facts
    kind: ClassVar[str]  # of a record, in the id of the script element
    fields: ClassVar[tuple[str, ...]]  # of a line of the list

    @property
    def count(self) -> int:
        """The number of lines."""
        return self.index.starts[-1]

    @property
    def leaves(self) -> tuple[Leaves, ...]:
        """The leaves of the explorer's page; none without records."""
        return (self.index, self.entries) if self.count else ()

    @property
    def choices_element(self) -> Markup:
        """The script element of the explorer's page that holds the fields of its list and the choices as JSON."""
        choices = Markup(escaped_json({"fields": self.fields, **self.choices}))
        return Markup('<script type="application/json" id="{}-choices">{}</script>').format(self.kind, choices)


def _of(name: str, lines: Iterable[Any], texts: Iterable[str], budget_bytes: float) -> tuple[Leaves, Leaves]:
    """The leaves `index` and `entries` of an explorer, from its lines and the JSON of its records."""
    return Leaves.of(f"{name}-list", lines, budget_bytes), Leaves.of_json(name, texts, budget_bytes)


def _snippet(text: str) -> str:
    """The beginning of a text, of at most SNIPPET characters."""
    return text if len(text) <= SNIPPET else text[: SNIPPET - 1] + "…"


@dataclass(frozen=True)
class Explorer(Explored):
    """Samples under models."""

    ids: frozenset[str] = frozenset()  # of all samples
    kind: ClassVar[str] = "sample"
    fields: ClassVar[tuple[str, ...]] = SAMPLE_FIELDS

    @classmethod
    def of(
        cls,
        entries: Iterable[Entry],
        budget_bytes: float = LEAF_BYTES,
    ) -> Explorer:
        """The explorer of `entries`, data of :func:`heatmaps.tokens.data`, in which a sample's follow each other.

        Entries are iterated once, and only their JSON is kept in memory.
        """
        lines, texts, ids = [], [], set()
        values: dict[str, dict[Any, None]] = {name: {} for name in ("task", "model", "attractors", "explanation")}
        for entry in entries:
            lines.append(_line(entry))
            texts.append(escaped_json(entry))
            ids.add(entry["sample_id"])
            for name in ("task", "model", "attractors"):
                if entry[name] is not None:
                    values[name][entry[name]] = None
            for row in entry["rows"]:
                if row["explanation"] != "none":
                    values["explanation"][row["explanation"]] = None
        choices: dict[str, Any] = {name: list(of_field) for name, of_field in values.items()}
        choices["attractors"].sort(key=lambda value: (str(type(value)), value))
        return cls(*_of("samples", lines, texts, budget_bytes), choices, frozenset(ids))

    @property
    def samples(self) -> int:
        """The number of samples; a sample under two models counts once."""
        return len(self.ids)

    @property
    def leaves(self) -> tuple[Leaves, ...]:
        """The leaves of the explorer's page, also without samples."""
        return self.index, self.entries


def _line(entry: Mapping[str, Any]) -> list[Any]:
    """The values of SAMPLE_FIELDS of an entry, for the list."""
    correct = None if entry["correct"] is None else int(entry["correct"])
    known = [entry[name] for name in ("sample_id", "model", "task")]
    disagreement = round(100 * entry["disagreement"])
    return [*known, correct, entry["attractors"], disagreement, _snippet(entry["text"])]


@dataclass(frozen=True)
class NeuronExplorer(Explored):
    """Neurons of models."""

    kind: ClassVar[str] = "neuron"
    fields: ClassVar[tuple[str, ...]] = NEURON_FIELDS

    @classmethod
    def of(
        cls,
        entries: Iterable[Entry],
        places: Sequence[str] = (),
        value: str = "zero",
        budget_bytes: float = LEAF_BYTES,
    ) -> NeuronExplorer:
        """The explorer of `entries`, facts of :func:`neuron_entry`, which are iterated once.

        `places` are the tasks and methods that `ranked` counts by index; `value`, a key of WITHOUT, is the config's
        name of the value of ablated neurons.
        """
        lines, texts = [], []
        models: dict[str, set[int]] = {}
        for neuron in entries:
            lines.append([neuron[name] for name in NEURON_FIELDS])
            texts.append(escaped_json(neuron))
            models.setdefault(neuron["model"], set()).add(neuron["layer"])
        choices = {
            "without": WITHOUT[value],
            "places": list(places),
            "models": {name: sorted(layers) for name, layers in models.items()},
        }
        return cls(*_of("neurons", lines, texts, budget_bytes), choices)


def neuron_entry(model: str, layer: int, neuron: int, ranked: Sequence[tuple[int, float, int]], **known: Any) -> Entry:
    """The facts of a neuron on the page, as JSON.

    `ranked` are (place, mean relevance, samples); a place is the index of a task under a method in the explorer's
    `places`. `known` are further facts, each of which may be absent:

    * `name`: if it is not `layer.neuron`
    * `contexts`: max-activating examples of :func:`shown`, each with its `activation`, from the largest on;
      `corpus`: the name of their corpus; `explained`: the label of the method that explains the activation in them
    * `histogram`: counts of activations at tokens of the corpus between `edges`, and their `mean`
    * `samples`: of :func:`shown`, each with `id`, `task`, `method`, `relevance` and `activation`
    * `removed`: (place, mean drop of the explained number, samples) after ablation of this neuron, over the samples in
      which it ranks first
    """
    unknown: dict[str, Any] = {"contexts": [], "corpus": "", "explained": "", "histogram": None}
    unknown |= {"samples": [], "removed": [], "name": f"{layer}.{neuron}"}
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


@dataclass(frozen=True)
class SourcesExplorer(Explored):
    """Answers of models."""

    kind: ClassVar[str] = "answer"
    fields: ClassVar[tuple[str, ...]] = ANSWER_FIELDS

    @classmethod
    def of(cls, entries: Iterable[Entry], budget_bytes: float = LEAF_BYTES) -> SourcesExplorer:
        """Build the explorer from results of :func:`answer_entry`, which are iterated over once."""
        lines, texts = [], []
        for data in entries:
            lines.append([*(data[name] for name in ANSWER_FIELDS[:-1]), _snippet(data["answer"])])
            texts.append(escaped_json(data))
        return cls(*_of("answers", lines, texts, budget_bytes), {})


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
