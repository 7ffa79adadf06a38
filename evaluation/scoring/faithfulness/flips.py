"""Token flipping without the model: which tokens are removed, in which order, and the states along a curve.

A state is a set of removed ("flipped") tokens. A deletion curve (AttnLRP B.2) removes tokens one after another: MoRF
from the most relevant token on; LeRF is the reverse order, ties included. NormXLogit (5) removes shares of the most
relevant tokens at once.

Shapes: V variants (methods, explanations ...), T tokens of a sample, N of them flipped, S states of a curve, K shares,
M distinct states.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import numpy as np

from closelook.lrp_core.records.kinds import RESAMPLE
from closelook.lrp_core.records.types import UserError

AREAS, SHARES_OF_TOKENS = "areas", "shares"  # measures: tokens one after another, or shares of them at once
ORDERS = ("morf", "lerf")
SHARE_ORDERS = ("without_top", "top_only")
#: The number that a curve follows: the target's logit, or the target's logit minus the foil's.
SCORES = TARGET_LOGIT, CONTRAST = "target", "contrast"
SHARES = tuple(range(10, 100, 10))  # percent; NormXLogit's tables are means over these shares


@dataclass(frozen=True)
class Flips:
    """A way to flip tokens: the tokens, the perturbation, and their order, one after another (areas) or by shares."""

    way: str  # the perturbation: zero | black | mask | delete | resample
    steps: int  # of areas: states of a curve after the first; texts with at most as many tokens flip every token
    flip_special: bool
    seed: int  # of the order of tokens with equal relevance
    mask_id: int | None = None
    measure: str = AREAS
    paper: bool = False  # shares as in NormXLogit's notebooks: of all tokens; all but the first may be flipped
    pixels: bool = False  # of images: flip single pixels instead of patches
    fill: tuple[float, ...] | None = None  # of images: the value of flipped pixels, by channel, normalised
    draws: int = 1  # of replacement tokens; a curve is the mean over draws
    kept_ids: tuple[int, ...] = ()  # special tokens of the tokenizer, which are never replaced

    def key(self) -> dict[str, Any]:
        """The fields that enter keys of artifacts, by name.

        Fields of images enter only if `fill` is set, those of replacements only for RESAMPLE: keys of other curves do
        not change when such a field is added.
        """
        return _key_of(self)

    @property
    def orders(self) -> tuple[str, str]:
        """The two orders that are stored: MoRF and LeRF, or without the top tokens and with them alone."""
        return ORDERS if self.measure == AREAS else SHARE_ORDERS

    @property
    def percent(self) -> tuple[int, ...] | None:
        """The percentage of flipped tokens in each state; None for areas."""
        return None if self.measure == AREAS else (0, *SHARES)

    def most_states(self, lengths: np.ndarray) -> np.ndarray:
        """An upper bound of the states of a curve after the first, for texts of `lengths` tokens; of the same shape."""
        if self.measure != AREAS:
            return np.full_like(lengths, len(SHARES))
        return np.full_like(lengths, self.steps) if self.pixels else np.minimum(lengths, self.steps)

    def chosen(self, row: Mapping[str, Any], slot: bool) -> np.ndarray:
        """The tokens of a view row that may be flipped, [T] bool; for single pixels of an image [H * W].

        `slot` says that the row's position is a masked slot, which is never flipped. Raises UserError if no token may
        be flipped.
        """
        if self.pixels:
            return np.ones(row["pixel_values"][0].size, bool)
        special = self.special(row)
        if self.paper:
            special = np.arange(len(special)) == 0
        masked = row["position"] if slot else None
        may_flip_special = self.flip_special and not self.paper
        return candidates(
            len(special), special=special, scope=row["scope_mask"], slot=masked, flip_special=may_flip_special
        )

    def special(self, row: Mapping[str, Any]) -> np.ndarray:
        """The special tokens of a view row, [T] bool: those of the tokenizer's template, and `kept_ids`."""
        special = np.asarray(row["special_mask"], bool)
        return special | np.isin(row["input_ids"], self.kept_ids) if self.kept_ids else special

    def states(self, ranking: Ranking) -> tuple[np.ndarray, np.ndarray]:
        """(numbers of removed tokens [2, S], removed tokens [V, 2, S, T] bool) in both `orders`, for every variant.

        The first state of shares is the whole input.
        """
        if self.measure == AREAS:
            counts = flip_counts(ranking.flipped, self.steps)
            return np.stack([counts, counts]), ranking.curves(counts)
        counts = share_counts(ranking.turn.shape[1] if self.paper else ranking.flipped)
        removed = ranking.shares(counts)
        whole = np.zeros_like(removed[:, :, :1])
        removed = np.concatenate([whole, removed], axis=2)
        return removed.sum(axis=-1)[0], removed


@cache
def _key_of(flips: Flips) -> dict[str, Any]:
    """The key of flips, cached since all curves of a run share a few."""
    without = set() if flips.fill is not None else {"pixels", "fill"}
    if flips.way != RESAMPLE:
        without |= {"draws", "kept_ids"}
    return {name: value for name, value in asdict(flips).items() if name not in without}


def candidates(
    length: int,
    *,
    special: np.ndarray,
    scope: np.ndarray | None = None,
    slot: int | None = None,
    flip_special: bool = True,
) -> np.ndarray:
    """The tokens that may be flipped, [T] bool: those of `scope` [T], or all; `special` ones [T] if `flip_special`.

    `slot` is the position where a masked model predicts, which is never flipped. Raises UserError if no token is left.
    """
    chosen = np.ones(length, bool) if scope is None else np.array(scope, bool)
    if not flip_special:
        chosen &= ~np.asarray(special, bool)
    if slot is not None:
        chosen[slot] = False
    if not chosen.any():
        subject = "no token" if scope is None else "no token of the scope"
        raise UserError(f"{subject} may be removed")
    return chosen


def tie_order(
    input_ids: Sequence[int], seed: int, *, picture: bytes | None = None, size: int | None = None
) -> np.ndarray:
    """The order [T] of tokens with equal relevance: a permutation that is the same for all methods.

    It depends on `seed` and the sample's tokens only. Tokens of images have no ids, so that the bytes of the `picture`
    enter instead. `size` is the length of the permutation if it is not T.
    """
    content = f"ties:{seed}:{list(map(int, input_ids))}".encode() + (picture or b"")
    digest = hashlib.sha256(content).digest()
    return np.random.default_rng(int.from_bytes(digest[:8])).permutation(len(input_ids) if size is None else size)


def flip_counts(flipped: int, steps: int) -> np.ndarray:
    """The number of removed tokens in each state [S]: 0, 1, ..., `flipped`, or `steps` even steps if these are fewer.

    Raises UserError for `steps` below 1.
    """
    if steps < 1:
        raise UserError(f"steps must be at least 1, not {steps}")
    parts = min(flipped, steps)
    return (2 * flipped * np.arange(parts + 1) + parts) // (2 * parts)  # rounds to the nearest whole number


def share_counts(tokens: int) -> np.ndarray:
    """SHARES percent [K] of a number of tokens, rounded down."""
    return np.asarray(SHARES) * tokens // 100


@dataclass(frozen=True)
class Ranking:
    """The tokens of a sample in the order in which each variant flips them."""

    turn: np.ndarray  # [V, T] the step, from 0, at which MoRF flips a token; N for tokens that are never flipped
    flipped: int  # N
    most: int  # the largest number of tokens that can be removed at once
    finite: np.ndarray  # [V] bool; a variant whose relevance is not finite has no order, and its turns mean nothing

    @classmethod
    def of(cls, relevance: np.ndarray, chosen: np.ndarray, ties: np.ndarray, *, keep_one: bool = False) -> Ranking:
        """Ranks the `chosen` tokens [T] by signed `relevance` [V, T]; `ties` [T] orders tokens of equal relevance.

        `keep_one` is for deletion, which cannot remove all tokens of an input: the last one stays.
        """
        at = np.flatnonzero(chosen)
        values = np.asarray(relevance, np.float64)[:, at]  # [V, N]
        order = np.lexsort((np.broadcast_to(np.asarray(ties)[at], values.shape), -values), axis=-1)
        turn = np.full(relevance.shape, len(at))
        turn[:, at] = order.argsort(axis=-1)  # the inverse of the order: each token's step
        most = min(len(at), len(chosen) - 1) if keep_one else len(at)
        return cls(turn, len(at), most, np.asarray(np.isfinite(values).all(axis=-1)))

    def curves(self, counts: np.ndarray) -> np.ndarray:
        """The removed tokens [V, 2, S, T] bool after MoRF and LeRF have flipped `counts` [S] tokens, at most `most`."""
        removed = np.minimum(counts, self.most)
        return np.stack([self._first(removed), self._last(removed)], axis=1)

    def shares(self, counts: np.ndarray) -> np.ndarray:
        """The removed tokens [V, 2, K, T] bool: the `counts` [K] most relevant ones, and all others (sufficiency)."""
        top = np.minimum(counts, self.flipped)
        first = self._first(np.minimum(top, self.most))
        return np.stack([first, self._last(np.minimum(self.flipped - top, self.most))], axis=1)

    def _first(self, removed: np.ndarray) -> np.ndarray:
        """The first `removed` [S] tokens of the order, [V, S, T] bool."""
        return self.turn[:, None] < removed[:, None]

    def _last(self, removed: np.ndarray) -> np.ndarray:
        """The last `removed` [S] tokens of the order, [V, S, T] bool."""
        turn = self.turn[:, None]
        return (turn >= self.flipped - removed[:, None]) & (turn < self.flipped)


@dataclass(frozen=True)
class States:
    """The distinct states of a sample, and the index of the state at each point of its curves."""

    removed: np.ndarray  # [M, T] bool, distinct
    points: np.ndarray  # [...] indices into M

    @classmethod
    def of(cls, removed: np.ndarray) -> States:
        """Merges equal states of an array of removed tokens [..., T] bool."""
        flat = removed.reshape(-1, removed.shape[-1])
        _, first, inverse = np.unique(np.packbits(flat, axis=-1), axis=0, return_index=True, return_inverse=True)
        return cls(flat[first], inverse.reshape(removed.shape[:-1]))
