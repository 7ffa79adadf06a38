"""Labels of nodes: the nodes that satisfy the demands of models and precisions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

#: (label, value) pairs that a node must have, or as good; a label may occur twice, then both must be met.
Needs = Sequence[tuple[str, str]]

FLOAT64, FAST, SLOW = "float64", "fast", "slow"  # what a node may say of double precision
ACCELERATOR = "ray.io/accelerator-type"  # what Ray itself says of every node with GPUs
# How GPUs run float64, by their makers' data sheets, under Ray's names of them: about half as fast as float32, or 1/32
# and less. Of the others nothing is known.
_BY_ACCELERATOR = {
    FAST: {"P100", "V100", "A100", "A100-40G", "A100-80G", "H100", "H200", "B200", "GB200"},
    SLOW: {"P4", "T4", "A10G", "L4", "L40S", "H20", "B300", "GB300", "RTX-PRO-6000"},
}
#: Memory of GPUs as labels say it; a worker that asks for one of them may have any that is larger.
_SIZE = re.compile(r"(\d+)gb")
_SIZES = (8, 12, 16, 24, 32, 40, 48, 64, 80, 94, 96, 141, 180, 192, 288)


def known(labels: Mapping[str, str]) -> dict[str, str]:
    """The labels of a node, with the speed of float64 where only Ray's names of its GPUs tell it."""
    for speed, accelerators in _BY_ACCELERATOR.items():
        if labels.get(ACCELERATOR) in accelerators:
            return {FLOAT64: speed, **labels}
    return dict(labels)


def matches(labels: Mapping[str, str], needs: Needs) -> bool:
    """True where a node with these labels will do. One without such a label is trusted to have suitable GPUs."""
    return all(key not in labels or labels[key] in _sufficient(value, labels[key]) for key, value in needs)


def allowed(needs: Needs) -> dict[str, list[str]]:
    """The values of each label that meet every need of it."""
    values: dict[str, list[str]] = {}
    for key, value in needs:
        enough = _sufficient(value)
        values[key] = [known_value for known_value in values.get(key, enough) if known_value in enough]
    return values


def in_words(needs: Needs) -> str:
    return ", ".join(f"{key}={value}" for key, value in needs)


def _sufficient(smallest: str, *more: str) -> list[str]:
    """Values of a label that satisfy a demand for `smallest`: larger sizes too, and the values of `more`."""
    size = _SIZE.fullmatch(smallest)
    if size is None:
        return [smallest]
    sized = {f"{number}gb" for number in _SIZES} | {smallest, *more}
    sizes = {name: int(match[1]) for name in sized if (match := _SIZE.fullmatch(name))}
    return sorted((name for name in sizes if sizes[name] >= int(size[1])), key=lambda name: sizes[name])
