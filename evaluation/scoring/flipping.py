"""Many flipped states of many samples through a model: logit, probability and correctness of the explained token.

Every distinct state runs once, whatever methods and orders ask for it. Rows of all samples are packed by length into
batches of a token budget; logits are formed where the prediction is read and nowhere else.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from evaluation.scoring.flips import States
from lrp_core.guard import undisturbed
from lrp_core.interventions.pixels import pixels_replaced
from lrp_core.interventions.tokens import check_way, tokens_removed
from lrp_core.kinds import DELETE, RESAMPLE
from lrp_core.memory import is_out_of_memory
from lrp_core.readout import over_vocabulary
from lrp_core.transfer import to_device
from lrp_core.types import Batch
from lrp_core.view import ModelView

log = logging.getLogger(__name__)
INSTEAD = "instead"  # of a view row, the tokens [T] in place of those that go


@dataclass(frozen=True)
class Outputs:
    """The model's outputs in each state, or at each point; NaN where its logits are not finite."""

    logit: np.ndarray  # of the target
    log_probability: np.ndarray  # of the target, over the whole vocabulary
    #: 1 or 0: target above foil or, without a foil, above every other token; of rows with a gold label (`gold_id`),
    #: that one above every other.
    correct: np.ndarray
    foil: np.ndarray  # logit of the foil; of the target where there is none

    @property
    def probability(self) -> np.ndarray:
        return np.exp(self.log_probability)

    @classmethod
    def mean(cls, draws: Sequence[Outputs]) -> Outputs:
        """Mean logits and probabilities over draws; a state is correct where more than half of its draws are."""
        if len(draws) == 1:
            return draws[0]
        logit, correct, foil = (
            np.mean([getattr(draw, name) for draw in draws], axis=0) for name in ("logit", "correct", "foil")
        )
        probability = np.logaddexp.reduce([draw.log_probability for draw in draws]) - np.log(len(draws))
        majority = np.where(np.isnan(correct), np.nan, correct > 1 / 2)
        return cls(logit, probability, majority, foil)

    def at(self, points: np.ndarray | slice) -> Outputs:
        return Outputs(*(getattr(self, field.name)[points] for field in fields(self)))


class Flipper:
    """Runs states of samples in batches of `token_budget` tokens, padding included.

    `way` is how tokens go (see :func:`tokens_removed`): by `mask_id` if masked, by the row's `instead` if resampled.
    Where pixels of images, or patches, are gone, `fill` stands there, by channel. Out of memory halves the budget for
    this batch and those after it. Raises UserError for a way that the model does not know.
    """

    def __init__(
        self,
        view: ModelView,
        way: str,
        token_budget: int,
        mask_id: int | None = None,
        fill: Sequence[float] | None = None,
    ) -> None:
        check_way(view, way, mask_id)
        self.view, self.way, self.token_budget, self.mask_id, self.fill = view, way, token_budget, mask_id, fill
        self.computed = 0  # forwards of a row: distinct states
        self.asked = 0  # forwards of a row had every point of every curve been run
        self.halved = 0

    def run(self, samples: Sequence[tuple[Mapping[str, Any], States]]) -> list[Outputs]:
        """Outputs [M] of each sample's states; a sample is a view row and its states.

        Raises whatever the model raises, out of memory only for a single row.
        """
        rows = _Rows.of(samples, self.way == DELETE)
        by_row = np.empty((4, len(rows.lengths)))  # by row, as Outputs
        order, start = rows.by_length(), 0
        while start < len(order):
            size = max(1, self.token_budget // rows.lengths[order[start]])
            chosen = order[start : start + size]
            outputs = self._within_memory(rows, chosen)
            if outputs is None:  # the failed batch's memory is free again only here, with its exception gone
                self._halve(len(chosen) * int(rows.lengths[chosen[0]]))
                continue
            by_row[:, chosen] = outputs
            start += size
        self.computed += len(order)
        self.asked += sum(states.asked for _, states in samples)
        return [Outputs(*by_row[:, part]) for part in rows.parts()]

    def _halve(self, tokens: int) -> None:
        """After a batch of so many `tokens` was too much."""
        if self.view.device.type == "cuda":
            torch.cuda.empty_cache()
        self.token_budget = tokens // 2
        self.halved += 1
        log.warning("out of memory with %d tokens in a batch: going on with %d", tokens, self.token_budget)

    def _within_memory(self, rows: _Rows, chosen: np.ndarray) -> np.ndarray | None:
        """Outputs [4, R]; None when several rows together were too much."""
        try:
            return self._forward(rows.batch(chosen))
        except Exception as error:
            if len(chosen) == 1 or not is_out_of_memory(error):
                raise
        return None

    def _changed(self, states: _Stacked) -> AbstractContextManager[Batch]:
        """The batch without what is removed: tokens or, of images, patches or pixels."""
        if states.batch.pixel_values is None or self.fill is None:
            instead = states.instead if self.way == RESAMPLE else self.mask_id
            return tokens_removed(self.view, states.batch, states.removed, self.way, instead)
        return nullcontext(pixels_replaced(self.view, states.batch, states.removed, self.fill))

    @torch.inference_mode()
    def _forward(self, states: _Stacked) -> np.ndarray:
        with undisturbed(self.view):
            with self._changed(states) as changed:
                hidden = self.view.hidden(changed)
            state = self.view.prediction(hidden, changed)
            target, foil = self.view.unembed(state, changed).unbind(-1)
            total, largest = over_vocabulary(self.view, state)
        contrasted = to_device(states.contrasted & (states.gold < 0), target.device)
        gold, targets = to_device(states.gold, largest.device), changed.target_ids.to(largest.device)
        best = largest == torch.where(gold < 0, targets, gold)
        correct = torch.where(contrasted, target > foil, best.to(target.device)).to(target.dtype)
        outputs = torch.stack([target, target - total.to(target), correct, foil])
        return torch.where(outputs.isfinite().all(0), outputs, torch.nan).cpu().numpy()


@dataclass(frozen=True)
class _Stacked:
    """States of samples as the rows of one batch, on the CPU."""

    batch: Batch
    removed: Tensor  # [R, T] or [R, H * W] bool, the tokens or pixels that each loses
    instead: Tensor | None  # [R, T] tokens in their place, where rows name some
    contrasted: Tensor  # [R] bool, whether a foil decides what is correct
    gold: Tensor  # [R] the gold labels, -1 where there is none


@dataclass(frozen=True)
class _Rows:
    """States of samples, one after the other, as rows of batches."""

    samples: Sequence[tuple[Mapping[str, Any], States]]
    sample: np.ndarray  # [R] which sample a row is of
    state: np.ndarray  # [R] and which of its states
    lengths: np.ndarray  # [R] tokens

    @classmethod
    def of(cls, samples: Sequence[tuple[Mapping[str, Any], States]], deleted: bool) -> _Rows:
        """`deleted` tells that removed tokens take no room."""
        counts = [len(states.removed) for _, states in samples]
        state, lengths = [np.zeros(0, int)], [np.zeros(0, int)]  # of each sample [M]
        for row, states in samples:
            state.append(np.arange(len(states.removed)))
            lengths.append(len(row["input_ids"]) - states.removed.sum(axis=1) * deleted)
        sample = np.repeat(np.arange(len(samples)), counts)
        return cls(samples, sample, np.concatenate(state), np.concatenate(lengths))

    def by_length(self) -> np.ndarray:
        """[R] longest first, so that what memory cannot hold shows at once; rows of a sample side by side."""
        return np.lexsort((self.state, self.sample, -self.lengths))

    def parts(self) -> list[slice]:
        """The rows of each sample."""
        ends = np.searchsorted(self.sample, np.arange(len(self.samples) + 1))
        return [slice(*ends_of_sample) for ends_of_sample in pairwise(ends.tolist())]

    def batch(self, chosen: np.ndarray) -> _Stacked:
        """The rows `chosen` [R]."""
        which, of = np.unique(self.sample[chosen], return_inverse=True)
        rows = [self.samples[i][0] for i in which]
        # A row without a foil stands beside others with the target in its place, which nothing reads.
        both = [{**row, "foil_id": row["target_id"] if row.get("foil_id") is None else row["foil_id"]} for row in rows]
        golds = [row.get("gold_id") for row in rows]
        contrasted = torch.tensor([one.get("foil_id") is not None and one.get("predicted_id") is None for one in rows])
        batch = Batch.collate(both, pad_id=0)
        removed = np.zeros((len(chosen), max(self.samples[i][1].removed.shape[1] for i in which)), bool)
        for i, sample in enumerate(which):
            states = self.samples[sample][1].removed
            removed[of == i, : states.shape[1]] = states[self.state[chosen[of == i]]]
        repeated = {name: value[of] for name, value in vars(batch).items() if value is not None}
        gold = torch.tensor([-1 if one is None else one for one in golds])
        instead = None
        if INSTEAD in rows[0]:
            instead = pad_sequence([torch.as_tensor(row[INSTEAD]) for row in rows], batch_first=True)[of]
        return _Stacked(replace(batch, **repeated), torch.from_numpy(removed), instead, contrasted[of], gold[of])
