"""Labels by their names: equality of names, and numbers that tell apart outputs with the same name."""

from __future__ import annotations

import re
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


def index_of(name: str, labels: Sequence[str], numbers: bool = True) -> int | None:
    """The output of a classifier with these labels that means `name`, whatever its case; None where no output does.

    With `numbers`, `2` and `LABEL_2` mean the output of that number, unless labels are numbers themselves and count
    otherwise, as stars from 1 to 5 do.
    """
    known = list(map(plain, labels))
    if plain(name) in known:
        return known.index(plain(name))
    counts = all(_number(label) in (None, at) for at, label in enumerate(known))
    number = _number(plain(name)) if numbers and counts else None
    return number if number is not None and number < len(known) else None


def _number(label: str) -> int | None:
    """The number that a plain label is, as `2` or `label_2`."""
    matched = re.fullmatch(r"(?:label_)?(\d+)", label)
    return None if matched is None else int(matched.group(1))
