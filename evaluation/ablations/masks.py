"""Masks of a sample's units: which units stay in the prompt. They depend on the sample and the seed, not on the model.

Sets of masks: the full prompt; leave-one-out masks, each without one unit; masks to fit methods to; masks to judge
methods by; pairs for Shapley values; masks without several random units. The full and leave-one-out masks never judge.

Shapes: n units, M distinct masks, R masks of a set.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np

ENUMERATED = 256  # up to so many masks, all are run: half of them to fit, half to judge
DROPPED = (1, 3, 5)  # numbers of most relevant units that are removed together
_RANDOM_SETS = 32  # most sets of random units of each of these numbers


@dataclass(frozen=True)
class Sizes:
    """The numbers of masks that are drawn for a sample with more than ENUMERATED masks."""

    fit: int = 128
    judge: int = 64
    shapley: int = 0  # for Shapley values, of a sample with any number of units


@dataclass(frozen=True)
class Masks:
    """The distinct masks of a sample, and the sets of them; sets are indices into `kept`."""

    kept: np.ndarray  # [M, n] bool, True for units that stay
    full: int  # the mask that keeps all units
    without: np.ndarray  # [n] the masks without one unit, by unit
    fit: np.ndarray  # masks to fit methods to
    judge: np.ndarray  # masks to judge methods by
    swapped: bool  # True: all masks are run, so that methods are also fitted to `judge` and judged by `fit`
    shapley: np.ndarray  # the mask that keeps nothing, one of each pair, then their complements; empty if not asked for
    shapley_weights: np.ndarray  # how often each pair was drawn
    random: Mapping[int, np.ndarray]  # masks without random units, by the number of removed units


def masks_of(sample: str, units: int, seed: int, sizes: Sizes) -> Masks:
    """The masks of a sample with so many `units`, drawn from a seed of `seed` and the name of the `sample`.

    With up to ENUMERATED masks (2^n), every mask but the full and leave-one-out ones is in `fit` or in `judge`, half of
    them in each. Otherwise each mask of both keeps every unit with probability 1/2; a mask to judge is drawn again if
    it is in another set.
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
        from closelook.lrp_core.methods.kernel_shap import pairs_of

        drawn, times = pairs_of(units, sizes.shapley, int(rng.integers(2**31)))
        pairs, weights = drawn.numpy(), times.numpy()
        shapley = gathered.add(np.concatenate([np.zeros((1, units), bool), pairs, ~pairs]))
    random = {count: gathered.add(_some(units, count, rng)) for count in DROPPED[1:] if count < units}
    return Masks(gathered.kept, int(full[0]), without, fit, judge, swapped, shapley, weights, random)


class _Gathered:
    """A growing list of distinct masks of so many `units`."""

    def __init__(self, units: int) -> None:
        """An empty list."""
        self.units = units
        self.place: dict[bytes, int] = {}

    def add(self, masks: np.ndarray) -> np.ndarray:
        """Adds the rows of `masks` [R, n] that are new, and returns the index of every row in the list [R]."""
        places = [self.place.setdefault(mask.tobytes(), len(self.place)) for mask in np.ascontiguousarray(masks)]
        return np.array(places, int)

    def __contains__(self, mask: np.ndarray) -> bool:
        """True if the mask [n] is in the list."""
        return mask.tobytes() in self.place

    @property
    def kept(self) -> np.ndarray:
        """All masks [M, n] bool, in the order in which they were added."""
        return np.frombuffer(b"".join(self.place), bool).reshape(-1, self.units)


def _halves(gathered: _Gathered, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Adds every mask that is not in the list, and returns their indices as two random halves."""
    codes = np.arange(2**gathered.units)
    every = (codes[:, None] >> np.arange(gathered.units) & 1).astype(bool)  # the bits of a code are the units kept
    others = every[[mask not in gathered for mask in every]]
    shuffled = others[rng.permutation(len(others))]
    first, second = np.split(shuffled, [len(shuffled) // 2])
    return gathered.add(first), gathered.add(second)


def _apart(gathered: _Gathered, count: int, rng: np.random.Generator) -> np.ndarray:
    """`count` random masks [R, n] that are not in the list; they may repeat."""
    drawn: list[np.ndarray] = []
    while len(drawn) < count:
        mask = rng.random(gathered.units) < 0.5
        if mask not in gathered:
            drawn.append(mask)
    return np.array(drawn).reshape(count, gathered.units)


def _some(units: int, gone: int, rng: np.random.Generator) -> np.ndarray:
    """Masks [R, n] that each remove `gone` units: all there are, or _RANDOM_SETS different ones drawn at random."""
    sets: set[tuple[int, ...]] = set()
    if comb(units, gone) <= _RANDOM_SETS:
        sets.update(combinations(range(units), gone))
    while len(sets) < min(_RANDOM_SETS, comb(units, gone)):
        sets.add(tuple(sorted(rng.choice(units, gone, replace=False).tolist())))
    kept = np.ones((len(sets), units), bool)
    for at, some in enumerate(sorted(sets)):
        kept[at, list(some)] = False
    return kept
