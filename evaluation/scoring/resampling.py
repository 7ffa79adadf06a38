"""Tokens drawn in place of others: the bigram proposal of a task's texts, given the left neighbour.

A zeroed embedding or a mask is seldom in a text that a model was trained on; a token that follows the same left
neighbour somewhere in the task is. Nothing here needs a model. Shapes: T tokens of a sample, D draws, P distinct pairs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lrp_core.types import UserError

VERSION = 1  # raised when other replacements come of the same texts
TEXT_COLUMNS = ["input_ids", "special_mask"]  # of views, that a proposal is made of
SINGLE_TOKEN = "the texts have a single token, so none can be drawn in its place: name other ways"
START, ANY = -1, -2  # left neighbours: of a text's first token; of every token, for counts of single tokens
_WIDTH = 1 << 32  # of the tokens of one left neighbour, among codes of pairs
_ROWS = 1 << 16  # texts whose pairs are counted at once


@dataclass(frozen=True, eq=False)
class Proposal:
    """Counts of each token behind each left neighbour in the texts of a task, and of each token alone."""

    codes: np.ndarray  # [P] int64, distinct pairs of a left neighbour (START and ANY among them) and a token, ascending
    before: np.ndarray  # [P + 1] int64, occurrences of all pairs before each

    @classmethod
    def of(cls, texts: Iterable[pa.Table], kept_ids: Collection[int]) -> Proposal:
        """From all texts, tables of TEXT_COLUMNS; special tokens and `kept_ids` are no proposals, but neighbours."""
        codes, counts = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for table in texts:
            for batch in table.select(TEXT_COLUMNS).to_batches(max_chunksize=_ROWS):
                distinct, times = np.unique(_pairs(batch, kept_ids), return_counts=True)
                codes.append(distinct)
                counts.append(times)
        every, at = np.unique(np.concatenate(codes), return_inverse=True)
        total = np.zeros(len(every), np.int64)
        np.add.at(total, at, np.concatenate(counts))
        return cls(every, np.concatenate([[0], np.cumsum(total)]))

    @cached_property
    def digest(self) -> str:
        """A hash of all counts, in hex."""
        content = [array.astype("<i8").tobytes() for array in (self.codes, self.before)]
        return hashlib.sha256(f"proposal:{VERSION}:".encode() + b"".join(content)).hexdigest()

    @property
    def tokens(self) -> int:
        """The number of distinct tokens that it may propose."""
        first, last = np.searchsorted(self.codes, [_code(ANY, 0), _code(ANY + 1, 0)])
        return int(last - first)

    def replacements(self, input_ids: Sequence[int], special: np.ndarray, draws: int, seed: int) -> np.ndarray:
        """[D, T] tokens in place of those of a sample, from `seed` and its own tokens; `special` ones [T] stay.

        A draw at position t is by the counts behind token t - 1 of the sample as it is, token t itself excluded. Where
        nothing else follows that neighbour, it is by the counts of single tokens. The first draws are the same whatever
        their number. Raises UserError where the texts have no other token.
        """
        ids = np.asarray(input_ids, np.int64)
        ordinary = np.flatnonzero(~np.asarray(special, bool))
        left = np.concatenate([[START], ids[:-1]])[ordinary]
        chance = np.random.default_rng(_seed_of(ids, seed)).random((draws, len(ids)))[:, ordinary]
        drawn = np.tile(ids, (draws, 1))
        drawn[:, ordinary] = self._drawn(left, ids[ordinary], chance)
        return drawn

    def _drawn(self, left: np.ndarray, own: np.ndarray, chance: np.ndarray) -> np.ndarray:
        """[D, N] tokens behind `left` [N] but `own` [N], at `chance` [D, N] of the cumulated counts."""
        left = np.where(self._others(left, own) > 0, left, ANY)
        others = self._others(left, own)
        if not others.all():
            raise UserError(SINGLE_TOKEN)
        first = self.before[np.searchsorted(self.codes, _code(left, 0))]
        own_first, own_count = self._counted(left, own)
        turn = first + (chance * others).astype(np.int64)
        turn += np.where(turn >= own_first, own_count, 0)  # the occurrences of the token itself are left out
        return self.codes[np.searchsorted(self.before, turn, side="right") - 1] % _WIDTH

    def _others(self, left: np.ndarray, own: np.ndarray) -> np.ndarray:
        """[N] occurrences behind `left` of tokens but `own`."""
        first, last = (self.before[np.searchsorted(self.codes, _code(end, 0))] for end in (left, left + 1))
        return last - first - self._counted(left, own)[1]

    def _counted(self, left: np.ndarray, own: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(occurrences of all pairs before it, its own) [N] of each pair; a pair that is in no text has none."""
        code = _code(left, own)
        first, last = (self.before[np.searchsorted(self.codes, end)] for end in (code, code + 1))
        return first, last - first


def _pairs(batch: pa.RecordBatch, kept_ids: Collection[int]) -> np.ndarray:
    """Codes of all ordinary tokens of some texts behind their left neighbours, and behind ANY."""
    ids = batch["input_ids"].flatten().to_numpy().astype(np.int64)
    special = batch["special_mask"].flatten().to_numpy(zero_copy_only=False).astype(bool)
    lengths = pc.list_value_length(batch["input_ids"]).to_numpy()
    starts = (np.cumsum(lengths) - lengths)[lengths > 0]
    left = np.concatenate([[START], ids[:-1]])[: len(ids)]
    left[starts] = START
    ordinary = ~(special | np.isin(ids, list(kept_ids)))
    return np.concatenate([_code(left[ordinary], ids[ordinary]), _code(ANY, ids[ordinary])])


def _code(left: np.ndarray | int, token: np.ndarray | int) -> np.ndarray:
    """The codes of pairs, ascending by neighbour, then by token."""
    return (np.asarray(left, np.int64) - ANY) * _WIDTH + token


def _seed_of(ids: np.ndarray, seed: int) -> int:
    digest = hashlib.sha256(f"resample:{seed}:{ids.tolist()}".encode()).digest()
    return int.from_bytes(digest[:8])
