"""Masks of a sample's units: which stay in a prompt. They depend on the sample and the seed, never on the model.

Sets of masks: the full prompt, every leave-one-out, masks to fit methods to, masks to judge methods by, Shapley-kernel
pairs, and random units that go together. The full and the leave-one-out masks never judge.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np

ENUMERATED = 256  # of so many masks or fewer all are run, half of them to fit and half to judge
DROPPED = (1, 3, 5)  # units that go together where methods say which
_RANDOM_SETS = 32  # of units that go together at random, at most, of each size


@dataclass(frozen=True)
class Sizes:
    """The numbers of masks of a sample with many units."""

    fit: int = 128
    judge: int = 64
    shapley: int = 0  # sets of Shapley-kernel pairs


@dataclass(frozen=True)
class Masks:
    """The distinct masks of a sample, and which of them make each set."""

    kept: np.ndarray  # [M, n] bool, what stays
    full: int
    without: np.ndarray  # [n]
    fit: np.ndarray
    judge: np.ndarray
    swapped: bool  # all masks are enumerated: methods are also fitted to `judge` and judged by `fit`
    shapley: np.ndarray  # none, a set of each pair, then their complements; empty where they are not run
    shapley_weights: np.ndarray  # of the pairs
    random: Mapping[int, np.ndarray]  # by how many units are gone: indices


def masks_of(sample: str, units: int, seed: int, sizes: Sizes) -> Masks:
    """The masks of a sample with so many units.

    With 2^n > ENUMERATED the masks to fit and to judge keep each unit with probability 1/2, independently; those that
    judge are drawn again while they are among the others. Otherwise every mask but the full and the leave-one-out ones
    is in one of the two halves.
    """
    entropy = hashlib.sha256(f"ablations:{seed}:{sample}".encode()).digest()
    rng = np.random.default_rng(int.from_bytes(entropy[:16]))
    gathered = _Gathered(units)
    full = gathered.add(np.ones((1, units), bool))
    without = gathered.add(~np.eye(units, dtype=bool))
    swapped = 2**units <= ENUMERATED
    if swapped:
        fit, judge = _halves(gathered, rng)
    else:
        fit = gathered.add(rng.random((sizes.fit, units)) < 0.5)
        judge = gathered.add(_apart(gathered, sizes.judge, rng))
    shapley, weights = np.zeros(0, int), np.zeros(0)
    if sizes.shapley:
        from lrp_core.methods.kernel_shap import pairs_of

        drawn, times = pairs_of(units, sizes.shapley, int(rng.integers(2**31)))
        pairs, weights = drawn.numpy(), times.numpy()
        shapley = gathered.add(np.concatenate([np.zeros((1, units), bool), pairs, ~pairs]))
    random = {count: gathered.add(_some(units, count, rng)) for count in DROPPED[1:] if count < units}
    return Masks(gathered.kept, int(full[0]), without, fit, judge, swapped, shapley, weights, random)


class _Gathered:
    """Masks that are added to a list, each once."""

    def __init__(self, units: int) -> None:
        self.units = units
        self.place: dict[bytes, int] = {}

    def add(self, masks: np.ndarray) -> np.ndarray:
        """The places in the list of the rows of `masks` [R, n]."""
        places = [self.place.setdefault(mask.tobytes(), len(self.place)) for mask in np.ascontiguousarray(masks)]
        return np.array(places, int)

    def __contains__(self, mask: np.ndarray) -> bool:
        return mask.tobytes() in self.place

    @property
    def kept(self) -> np.ndarray:
        return np.frombuffer(b"".join(self.place), bool).reshape(-1, self.units)


def _halves(gathered: _Gathered, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Every mask that is not in the list yet, split at random."""
    codes = np.arange(2**gathered.units)
    every = (codes[:, None] >> np.arange(gathered.units) & 1).astype(bool)
    others = every[[mask not in gathered for mask in every]]
    shuffled = others[rng.permutation(len(others))]
    first, second = np.split(shuffled, [len(shuffled) // 2])
    return gathered.add(first), gathered.add(second)


def _apart(gathered: _Gathered, count: int, rng: np.random.Generator) -> np.ndarray:
    """So many masks [R, n] that are not in the list."""
    drawn: list[np.ndarray] = []
    while len(drawn) < count:
        mask = rng.random(gathered.units) < 0.5
        if mask not in gathered:
            drawn.append(mask)
    return np.array(drawn).reshape(count, gathered.units)


def _some(units: int, gone: int, rng: np.random.Generator) -> np.ndarray:
    """Masks [R, n] that leave out `gone` of the units: all of them, or _RANDOM_SETS different ones."""
    sets: set[tuple[int, ...]] = set()
    if comb(units, gone) <= _RANDOM_SETS:
        sets.update(combinations(range(units), gone))
    while len(sets) < min(_RANDOM_SETS, comb(units, gone)):
        sets.add(tuple(sorted(rng.choice(units, gone, replace=False).tolist())))
    kept = np.ones((len(sets), units), bool)
    for at, some in enumerate(sorted(sets)):
        kept[at, list(some)] = False
    return kept
