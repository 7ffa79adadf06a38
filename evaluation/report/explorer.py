"""The explorer of samples: what its list and filters need of each, and each in full, in leaves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from markupsafe import Markup

from evaluation.report.leaves import LEAF_BYTES, Leaves, escaped_json

SNIPPET = 140  # letters of a text in the list
#: What a line of the list says of a sample under a model, in this order; `disagreement` is in percent.
FIELDS = ("id", "model", "task", "correct", "attractors", "disagreement", "text")


@dataclass(frozen=True)
class Explorer:
    """Samples under models, in the order of the list."""

    index: Leaves  # lines of FIELDS
    entries: Leaves  # of heatmap.data, numbered as the lines
    choices: Mapping[str, list[Any]]  # what the filters choose among, by field
    ids: frozenset[str]  # a sample under two models counts once
    pairs: Mapping[str, str] = field(default_factory=dict)  # by model, the one that is shown beside it unasked

    @classmethod
    def of(
        cls,
        entries: Iterable[Mapping[str, Any]],
        budget_bytes: float = LEAF_BYTES,
        pairs: Mapping[str, str] = MappingProxyType({}),
    ) -> Explorer:
        """`entries` are of :func:`heatmap.data`, those of a sample beside each other; each is held as JSON alone."""
        lines, texts, ids = [], [], set()
        every: dict[str, dict[Any, None]] = {name: {} for name in ("task", "model", "attractors", "explanation")}
        for entry in entries:
            lines.append(_line(entry))
            texts.append(escaped_json(entry))
            ids.add(entry["sample_id"])
            for name in ("task", "model", "attractors"):
                every[name] |= {entry[name]: None} if entry[name] is not None else {}
            every["explanation"] |= {row["explanation"]: None for row in entry["rows"] if row["explanation"] != "none"}
        choices = {name: list(values) for name, values in every.items()}
        choices["attractors"].sort(key=lambda value: (str(type(value)), value))
        index = Leaves.of("samples-list", lines, budget_bytes)
        return cls(index, Leaves.of_json("samples", texts, budget_bytes), choices, frozenset(ids), pairs)

    @property
    def samples(self) -> int:
        return len(self.ids)

    @property
    def leaves(self) -> tuple[Leaves, Leaves]:
        return self.index, self.entries

    @property
    def choices_element(self) -> Markup:
        """The element of the explorer's page that holds the choices, beside its leaves."""
        facts = Markup(escaped_json({"fields": FIELDS, "pairs": dict(self.pairs), **self.choices}))
        return Markup('<script type="application/json" id="sample-choices">{}</script>').format(facts)


def _line(entry: Mapping[str, Any]) -> list[Any]:
    correct = None if entry["correct"] is None else int(entry["correct"])
    text = entry["text"] if len(entry["text"]) <= SNIPPET else entry["text"][: SNIPPET - 1] + "…"
    known = [entry[name] for name in ("sample_id", "model", "task")]
    return [*known, correct, entry["attractors"], round(100 * entry["disagreement"]), text]
