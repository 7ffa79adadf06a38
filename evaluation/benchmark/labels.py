"""Names of labels: which names are equal, and how outputs with the same name are told apart by their numbers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence


def plain(label: str) -> str:
    """A label in the form in which names are compared: NOT-ENTAILMENT becomes not_entailment."""
    return label.strip().casefold().replace("-", "_").replace(" ", "_")


def distinct(labels: Sequence[str]) -> tuple[str, ...]:
    """Labels in their order; a name that several outputs have is followed by the output's number.

    >>> distinct(["crane", "wren", "crane"])
    ('crane (0)', 'wren', 'crane (2)')
    """
    count = Counter(map(plain, labels))
    return tuple(_numbered(name, at) if count[plain(name)] > 1 else name for at, name in enumerate(labels))


def sharing(name: str, labels: Sequence[str]) -> list[str]:
    """Those of `labels` that `distinct` made of the name `name` by adding the number of the output."""
    return [label for at, label in enumerate(labels) if plain(label) == plain(_numbered(name, at))]


def _numbered(name: str, at: int) -> str:
    """The name followed by the number of its output."""
    return f"{name} ({at})"


def index_of(name: str, labels: Sequence[str], numbers: bool = True) -> int | None:
    """The index of the output whose label is `name`, whatever its case; None if there is none.

    With `numbers`, `2` and `LABEL_2` mean output 2, unless the labels are themselves numbers other than their indices,
    such as stars from 1 to 5.
    """
    known = list(map(plain, labels))
    if plain(name) in known:
        return known.index(plain(name))
    counts = all(_number(label) in (None, at) for at, label in enumerate(known))
    number = _number(plain(name)) if numbers and counts else None
    return number if number is not None and number < len(known) else None


def _number(label: str) -> int | None:
    """The number in a plain label such as `2` or `label_2`; None for other labels."""
    matched = re.fullmatch(r"(?:label_)?(\d+)", label)
    return None if matched is None else int(matched.group(1))
