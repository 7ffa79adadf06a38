"""Labels of nodes, by which models and precisions choose the nodes of their workers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

#: (label, value) pairs that a node must have, or a better value. If a label occurs twice, both values are needed.
Needs = Sequence[tuple[str, str]]

FLOAT64, FAST, SLOW = "float64", "fast", "slow"  # label and values for the speed of double precision
ACCELERATOR = "ray.io/accelerator-type"  # label that Ray sets on every node with GPUs
# Speed of float64 by the makers' data sheets, under Ray's names of GPUs. FAST: about half of float32; SLOW: 1/32 of it
# or less. GPUs that are not listed are unknown.
_BY_ACCELERATOR = {
    FAST: {"P100", "V100", "A100", "A100-40G", "A100-80G", "H100", "H200", "B200", "GB200"},
    SLOW: {"P4", "T4", "A10G", "L4", "L40S", "H20", "B300", "GB300", "RTX-PRO-6000"},
}
#: Memory of GPUs as a label's value, such as 80gb; a worker that asks for a size may get any larger one.
_SIZE = re.compile(r"(\d+)gb")
_SIZES = (8, 12, 16, 24, 32, 40, 48, 64, 80, 94, 96, 141, 180, 192, 288)


def known(labels: Mapping[str, str]) -> dict[str, str]:
    """The labels of a node, with the speed of float64 added if they lack it and its type of GPU is listed."""
    for speed, accelerators in _BY_ACCELERATOR.items():
        if labels.get(ACCELERATOR) in accelerators:
            return {FLOAT64: speed, **labels}
    return dict(labels)


def matches(labels: Mapping[str, str], needs: Needs) -> bool:
    """True if a node with these labels satisfies `needs`. A label that it lacks counts as satisfied."""
    return all(key not in labels or labels[key] in _sufficient(value, labels[key]) for key, value in needs)


def allowed(needs: Needs) -> dict[str, list[str]]:
    """By label, the values that satisfy all needs."""
    values: dict[str, list[str]] = {}
    for key, value in needs:
        enough = _sufficient(value)
        values[key] = [known_value for known_value in values.get(key, enough) if known_value in enough]
    return values


def in_words(needs: Needs) -> str:
    """The needs as text: "label=value, label=value"."""
    return ", ".join(f"{key}={value}" for key, value in needs)


def _sufficient(smallest: str, *more: str) -> list[str]:
    """The values that satisfy a need for `smallest`: itself and, if it is a size of memory, all sizes not smaller.

    Sizes are those of _SIZES and `more`, sorted.
    """
    size = _SIZE.fullmatch(smallest)
    if size is None:
        return [smallest]
    sized = {f"{number}gb" for number in _SIZES} | {smallest, *more}
    sizes = {name: int(match[1]) for name in sized if (match := _SIZE.fullmatch(name))}
    return sorted((name for name in sizes if sizes[name] >= int(size[1])), key=lambda name: sizes[name])
