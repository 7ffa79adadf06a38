"""The order in which tokens are flipped, by relevance, and the states along curves (AttnLRP B.2, NormXLogit 5).

A state is a set of tokens that are gone. MoRF removes the most relevant token first, LeRF is MoRF reversed, ties
included. Nothing here needs a model. Shapes: V variants (methods, explanations ...), T tokens of a sample, N of them
flipped, S states of a curve, K shares.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from lrp_core.kinds import RESAMPLE
from lrp_core.types import UserError

AREAS, SHARES_OF_TOKENS = "areas", "shares"  # what is measured: see `Flips`
ORDERS = ("morf", "lerf")
SHARE_ORDERS = ("without_top", "top_only")
SCORES = TARGET_LOGIT, CONTRAST = "target", "contrast"  # what curves follow: the target's logit, or it minus the foil's
SHARES = tuple(range(10, 100, 10))  # percent; NormXLogit's tables are means over these


@dataclass(frozen=True)
class Flips:
    """The tokens that go, and the way: one after the other (areas), or shares of them at once."""

    way: str  # zero | black | mask | delete | resample
    steps: int  # of areas: states of a curve but the first; texts of no more tokens are flipped token by token
    flip_special: bool
    seed: int  # of the order of equal relevance
    mask_id: int | None = None
    measure: str = AREAS
    paper: bool = False  # shares as NormXLogit's notebooks take them: of all tokens; every one but the first may go
    pixels: bool = False  # of images: single pixels go; else their patches
    fill: tuple[float, ...] | None = None  # of images: what stands where a pixel is gone, by channel, normalised
    draws: int = 1  # of tokens in place of those that go, over which a curve is the mean
    kept_ids: tuple[int, ...] = ()  # special tokens of the tokenizer, which are never replaced

    def key(self) -> dict[str, Any]:
        """The fields that enter keys: those of images and of replacements only where they say something."""
        without = set() if self.fill is not None else {"pixels", "fill"}
        if self.way != RESAMPLE:
            without |= {"draws", "kept_ids"}
        return {name: value for name, value in asdict(self).items() if name not in without}

    @property
    def orders(self) -> tuple[str, str]:
        return ORDERS if self.measure == AREAS else SHARE_ORDERS

    @property
    def percent(self) -> tuple[int, ...] | None:
        """The percentages of tokens that are gone, state by state; None for areas."""
        return None if self.measure == AREAS else (0, *SHARES)

    def most_states(self, lengths: np.ndarray) -> np.ndarray:
        """[N] states of a curve, but the first, of texts of so many tokens."""
        if self.pixels and self.measure == AREAS:
            return np.full_like(lengths, self.steps)
        return np.minimum(lengths, self.steps) if self.measure == AREAS else np.full_like(lengths, len(SHARES))

    def chosen(self, row: Mapping[str, Any], slot: bool) -> np.ndarray:
        """[T] bool, the tokens of a view row that may go; `slot` tells that its position is a masked slot.

        Of an image whose pixels go one by one, those are meant [H * W]. Raises UserError when there is none.
        """
        if self.pixels:
            return np.ones(row["pixel_values"][0].size, bool)
        special = self.special(row)
        if self.paper:
            special = np.arange(len(special)) == 0
        return candidates(
            len(special),
            special=special,
            scope=row["scope_mask"],
            slot=row["position"] if slot else None,
            flip_special=self.flip_special and not self.paper,
        )

    def special(self, row: Mapping[str, Any]) -> np.ndarray:
        """[T] bool, the special tokens of a view row: those of the template, and `kept_ids`."""
        special = np.asarray(row["special_mask"], bool)
        return special | np.isin(row["input_ids"], self.kept_ids) if self.kept_ids else special

    def states(self, ranking: Ranking) -> tuple[np.ndarray, np.ndarray]:
        """(how many tokens are gone [2, S], which they are [V, 2, S, T] bool) in both orders."""
        if self.measure == AREAS:
            counts = flip_counts(ranking.flipped, self.steps)
            return np.stack([counts, counts]), ranking.curves(counts)
        counts = share_counts(ranking.turn.shape[1] if self.paper else ranking.flipped)
        removed = ranking.shares(counts)
        whole = np.zeros_like(removed[:, :, :1])
        removed = np.concatenate([whole, removed], axis=2)
        return removed.sum(axis=-1)[0], removed


def candidates(
    length: int,
    *,
    special: np.ndarray,
    scope: np.ndarray | None = None,
    slot: int | None = None,
    flip_special: bool = True,
) -> np.ndarray:
    """[T] bool, the tokens that may go: those of `scope` [T], with the `special` ones [T] or without.

    `slot` is where a masked model predicts, which never goes. Raises UserError when no token is left to flip.
    """
    chosen = np.ones(length, bool) if scope is None else np.array(scope, bool)
    if not flip_special:
        chosen &= ~np.asarray(special, bool)
    if slot is not None:
        chosen[slot] = False
    if not chosen.any():
        what = "no token" if scope is None else "no token of the scope"
        raise UserError(f"{what} may be flipped, so there is no curve; flip special tokens too, or leave this task out")
    return chosen


def tie_order(
    input_ids: Sequence[int], seed: int, *, picture: bytes | None = None, size: int | None = None
) -> np.ndarray:
    """A permutation [T] from `seed` and the sample's own tokens, by which every method breaks its ties.

    Tokens of images have no ids: their `picture` tells them apart. `size` is of the permutation where it is not T.
    """
    content = f"ties:{seed}:{list(map(int, input_ids))}".encode() + (picture or b"")
    digest = hashlib.sha256(content).digest()
    return np.random.default_rng(int.from_bytes(digest[:8])).permutation(len(input_ids) if size is None else size)


def flip_counts(flipped: int, steps: int) -> np.ndarray:
    """[S] how many tokens are gone at each state: every number up to `flipped`, or `steps` even steps if it is more."""
    if steps < 1:
        raise UserError(f"steps must be at least 1, not {steps}")
    parts = min(flipped, steps)
    return (2 * flipped * np.arange(parts + 1) + parts) // (2 * parts)  # to the nearest number, in whole numbers


def share_counts(tokens: int, shares: Sequence[int] = SHARES) -> np.ndarray:
    """[K] how many of `tokens` are `shares` percent, rounded down."""
    return np.asarray(shares) * tokens // 100


@dataclass(frozen=True)
class Ranking:
    """The tokens of a sample in the order in which each variant flips them."""

    turn: np.ndarray  # [V, T] when MoRF flips a token, from 0; N for tokens that stay
    flipped: int  # N
    most: int  # tokens that can be gone at once
    finite: np.ndarray  # [V] bool; a variant whose relevance is not finite has no order, and its turns mean nothing

    @classmethod
    def of(cls, relevance: np.ndarray, chosen: np.ndarray, ties: np.ndarray, *, keep_one: bool = False) -> Ranking:
        """The ranking by signed `relevance` [V, T] of the tokens `chosen` [T]; `ties` [T] orders equal ones.

        `keep_one` is for deletion, which stops at one token: a last flip of the whole input changes nothing.
        """
        at = np.flatnonzero(chosen)
        values = np.asarray(relevance, np.float64)[:, at]  # [V, N]
        order = np.lexsort((np.broadcast_to(np.asarray(ties)[at], values.shape), -values), axis=-1)
        turn = np.full(relevance.shape, len(at))
        turn[:, at] = order.argsort(axis=-1)
        most = min(len(at), len(chosen) - 1) if keep_one else len(at)
        return cls(turn, len(at), most, np.asarray(np.isfinite(values).all(axis=-1)))

    def curves(self, counts: np.ndarray) -> np.ndarray:
        """[V, 2, S, T] bool: what is gone when MoRF and LeRF have flipped `counts` [S] tokens."""
        gone = np.minimum(counts, self.most)
        return np.stack([self._first(gone), self._last(gone)], axis=1)

    def shares(self, counts: np.ndarray) -> np.ndarray:
        """[V, 2, K, T] bool: the `counts` [K] most relevant tokens gone, and all others gone (sufficiency)."""
        top = np.minimum(counts, self.flipped)
        first = self._first(np.minimum(top, self.most))
        return np.stack([first, self._last(np.minimum(self.flipped - top, self.most))], axis=1)

    def _first(self, gone: np.ndarray) -> np.ndarray:
        return self.turn[:, None] < gone[:, None]

    def _last(self, gone: np.ndarray) -> np.ndarray:
        turn = self.turn[:, None]
        return (turn >= self.flipped - gone[:, None]) & (turn < self.flipped)


@dataclass(frozen=True)
class States:
    """The distinct states of a sample, and which of them each point of its curves is."""

    removed: np.ndarray  # [M, T] bool, distinct
    points: tuple[np.ndarray, ...]  # into M, one array for each that was given

    @classmethod
    def of(cls, *removed: np.ndarray) -> States:
        """Merges equal states of arrays [..., T] bool."""
        length = removed[0].shape[-1]
        flat = np.concatenate([array.reshape(-1, length) for array in removed])
        packed = np.packbits(flat, axis=-1)
        keys = packed.view(np.dtype((np.void, packed.shape[1])))[:, 0]  # one comparison a state
        _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        ends = np.cumsum([array[..., 0].size for array in removed])[:-1]
        parts = np.split(inverse, ends)
        points = tuple(part.reshape(array.shape[:-1]) for part, array in zip(parts, removed, strict=True))
        return cls(flat[first], points)

    @property
    def asked(self) -> int:
        """Points, equal ones counted each time."""
        return sum(points.size for points in self.points)
