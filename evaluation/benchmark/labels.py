"""Labels by their names: when two are the same, and what tells those apart that several outputs share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


def plain(label: str) -> str:
    """A label as names are compared: NOT-ENTAILMENT is not_entailment."""
    return label.strip().casefold().replace("-", "_").replace(" ", "_")


def distinct(labels: Sequence[str]) -> tuple[str, ...]:
    """Labels in their order, with its number behind each that several have: `crane (134)` is the bird of ImageNet."""
    count = Counter(map(plain, labels))
    return tuple(_numbered(name, at) if count[plain(name)] > 1 else name for at, name in enumerate(labels))


def sharing(name: str, labels: Sequence[str]) -> list[str]:
    """The labels of `distinct` that were called `name` before."""
    return [label for at, label in enumerate(labels) if plain(label) == plain(_numbered(name, at))]


def _numbered(name: str, at: int) -> str:
    return f"{name} ({at})"
