"""The explorer of samples: the lines of its list, the values of its filters, and each sample in full, in leaves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from markupsafe import Markup

from evaluation.report.explorers.leaves import LEAF_BYTES, Entry, Leaves, escaped_json

SNIPPET = 140  # characters of a text in the list
#: The fields of a line of the list, which is a sample under a model; `disagreement` is in percent.
FIELDS = ("id", "model", "task", "correct", "attractors", "disagreement", "text")


@dataclass(frozen=True)
class Explorer:
    """Samples under models, in the order of the list."""

    index: Leaves  # lines of FIELDS
    entries: Leaves  # data of heatmap.data, numbered as the lines
    choices: Mapping[str, list[Any]]  # the values of the filters, by field
    ids: frozenset[str]  # of all samples
    pairs: Mapping[str, str] = field(default_factory=dict)  # by model: the model that is shown beside it by default

    @classmethod
    def of(
        cls,
        entries: Iterable[Entry],
        budget_bytes: float = LEAF_BYTES,
        pairs: Mapping[str, str] = MappingProxyType({}),
    ) -> Explorer:
        """The explorer of `entries`, data of :func:`heatmap.data`, of which those of a sample follow each other.

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
        choices = {name: list(of_field) for name, of_field in values.items()}
        choices["attractors"].sort(key=lambda value: (str(type(value)), value))
        index = Leaves.of("samples-list", lines, budget_bytes)
        return cls(index, Leaves.of_json("samples", texts, budget_bytes), choices, frozenset(ids), pairs)

    @property
    def samples(self) -> int:
        """The number of samples; a sample under two models counts once."""
        return len(self.ids)

    @property
    def leaves(self) -> tuple[Leaves, Leaves]:
        """The leaves of the explorer's page."""
        return self.index, self.entries

    @property
    def choices_element(self) -> Markup:
        """The script element of the explorer's page that holds the values of its filters as JSON."""
        facts = Markup(escaped_json({"fields": FIELDS, "pairs": dict(self.pairs), **self.choices}))
        return Markup('<script type="application/json" id="sample-choices">{}</script>').format(facts)


def _line(entry: Mapping[str, Any]) -> list[Any]:
    """The values of FIELDS of an entry, for the list."""
    correct = None if entry["correct"] is None else int(entry["correct"])
    text = entry["text"] if len(entry["text"]) <= SNIPPET else entry["text"][: SNIPPET - 1] + "…"
    known = [entry[name] for name in ("sample_id", "model", "task")]
    return [*known, correct, entry["attractors"], round(100 * entry["disagreement"]), text]
