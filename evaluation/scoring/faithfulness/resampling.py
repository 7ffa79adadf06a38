"""Replacement tokens for the perturbation "resample", drawn from the bigrams of a task's texts.

Models are seldom trained on texts with zeroed embeddings or masks. A replacement is therefore a token that follows the
same left neighbour somewhere in the task's texts. Replacements do not depend on the model.

Shapes: T tokens of a sample, D draws, P distinct pairs of neighbours, N tokens that are replaced.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from closelook.lrp_core.records.types import UserError

VERSION = 1  # raised when the same texts give other replacements
TEXT_COLUMNS = ["input_ids", "special_mask"]  # columns of views that bigrams are counted from
SINGLE_TOKEN = "all tokens of the task's texts are equal, so none can replace another: do not perturb by resample"
#: Left neighbours that are no tokens: START stands before a text's first token; ANY before every token, so that its
#: pairs count single tokens.
START, ANY = -1, -2
_WIDTH = 1 << 32  # codes that are reserved for the pairs of one left neighbour
_ROWS = 1 << 16  # texts whose pairs are counted at once


@dataclass(frozen=True, eq=False)
class Proposal:
    """Counts of every pair of neighbouring tokens in the texts of a task, and of every single token."""

    codes: np.ndarray  # [P] int64, ascending codes of the distinct pairs (left neighbour, token); see START and ANY
    before: np.ndarray  # [P + 1] int64, the number of occurrences of all pairs before each

    @classmethod
    def of(cls, texts: Iterable[pa.Table], kept_ids: Collection[int]) -> Proposal:
        """Counts every token of `texts`, tables of TEXT_COLUMNS, with its left neighbour and by itself.

        Special tokens and `kept_ids` count as left neighbours only, so that they are never proposed.
        """
        codes, counts = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for table in texts:
            for batch in table.select(TEXT_COLUMNS).to_batches(max_chunksize=_ROWS):
                distinct, times = np.unique(_pairs(batch, kept_ids), return_counts=True)
                codes.append(distinct)
                counts.append(times)
        merged, index = np.unique(np.concatenate(codes), return_inverse=True)
        total = np.zeros(len(merged), np.int64)
        np.add.at(total, index, np.concatenate(counts))
        return cls(merged, np.concatenate([[0], np.cumsum(total)]))

    @cached_property
    def digest(self) -> str:
        """A hash of all counts, in hex."""
        content = [array.astype("<i8").tobytes() for array in (self.codes, self.before)]
        return hashlib.sha256(f"proposal:{VERSION}:".encode() + b"".join(content)).hexdigest()

    @property
    def tokens(self) -> int:
        """The number of distinct tokens that may be proposed."""
        first, last = np.searchsorted(self.codes, [_code(ANY, 0), _code(ANY + 1, 0)])
        return int(last - first)

    def replacements(self, input_ids: Sequence[int], special: np.ndarray, draws: int, seed: int) -> np.ndarray:
        """Replacements [D, T] for the tokens of a sample; `special` tokens [T] stay.

        The replacement of token t is drawn by the counts of tokens that follow token t - 1 in the texts, token t itself
        excluded. If no other token follows token t - 1, it is drawn by the counts of single tokens. Draws depend on
        `seed` and the sample's tokens, and the first draws do not depend on the number of `draws`. Raises UserError if
        the texts have no other token.
        """
        ids = np.asarray(input_ids, np.int64)
        ordinary = np.flatnonzero(~np.asarray(special, bool))
        left = np.concatenate([[START], ids[:-1]])[ordinary]
        chance = np.random.default_rng(_seed_of(ids, seed)).random((draws, len(ids)))[:, ordinary]
        drawn = np.tile(ids, (draws, 1))
        drawn[:, ordinary] = self._drawn(left, ids[ordinary], chance)
        return drawn

    def _drawn(self, left: np.ndarray, token: np.ndarray, chance: np.ndarray) -> np.ndarray:
        """Tokens [D, N] that follow `left` [N] in the texts, other than `token` [N]; if none does, any other token.

        Occurrences of these tokens are numbered, and `chance` [D, N], uniform in [0, 1), chooses a number: a token is
        drawn by its count. Raises UserError if the texts have no other token.
        """
        left = np.where(self._others(left, token) > 0, left, ANY)
        others = self._others(left, token)
        if not others.all():
            raise UserError(SINGLE_TOKEN)
        first = self._occurrences_before(_code(left, 0))
        first_of_token, of_token = self._counts(left, token)
        turn = first + (chance * others).astype(np.int64)
        turn += np.where(turn >= first_of_token, of_token, 0)  # skips the occurrences of the token itself
        return self.codes[np.searchsorted(self.before, turn, side="right") - 1] % _WIDTH

    def _others(self, left: np.ndarray, token: np.ndarray) -> np.ndarray:
        """The number [N] of occurrences of tokens other than `token` after `left`."""
        followers = self._occurrences_before(_code(left + 1, 0)) - self._occurrences_before(_code(left, 0))
        return followers - self._counts(left, token)[1]

    def _counts(self, left: np.ndarray, token: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(occurrences of all pairs before the pair [N], occurrences of the pair [N]); a pair in no text has none."""
        code = _code(left, token)
        first = self._occurrences_before(code)
        return first, self._occurrences_before(code + 1) - first

    def _occurrences_before(self, code: np.ndarray) -> np.ndarray:
        """The number of occurrences of all pairs whose code is smaller."""
        return self.before[np.searchsorted(self.codes, code)]


def _pairs(batch: pa.RecordBatch, kept_ids: Collection[int]) -> np.ndarray:
    """Codes of a batch of texts: every ordinary token paired with its left neighbour, then every one with ANY."""
    ids = batch["input_ids"].flatten().to_numpy().astype(np.int64)
    special = batch["special_mask"].flatten().to_numpy(zero_copy_only=False).astype(bool)
    lengths = pc.list_value_length(batch["input_ids"]).to_numpy()
    starts = (np.cumsum(lengths) - lengths)[lengths > 0]  # the first token of each text
    left = np.concatenate([[START], ids[:-1]])[: len(ids)]
    left[starts] = START
    ordinary = ~(special | np.isin(ids, list(kept_ids)))
    return np.concatenate([_code(left[ordinary], ids[ordinary]), _code(ANY, ids[ordinary])])


def _code(left: np.ndarray | int, token: np.ndarray | int) -> np.ndarray:
    """The codes of pairs, which ascend by left neighbour, then by token."""
    return (np.asarray(left, np.int64) - ANY) * _WIDTH + token


def _seed_of(ids: np.ndarray, seed: int) -> int:
    """A seed that depends on `seed` and the token ids of a sample."""
    digest = hashlib.sha256(f"resample:{seed}:{ids.tolist()}".encode()).digest()
    return int.from_bytes(digest[:8])
