"""Runs a model on perturbed samples: logit, probability and correctness of the explained token in every state.

A state is a set of removed ("flipped") tokens (see `flips`). Every distinct state of a sample runs once, or once for
each draw of replacement tokens, for all variants and orders together. Rows of all samples are packed by length into
batches of a token budget, and logits are computed at the readout position only. Curves follow AttnLRP B.2 (areas) and
NormXLogit 5 (shares).

Shapes: M states of a sample, R rows of a batch, T tokens, V variants (methods, explanations ...), S states of a curve,
D draws; the axis of 2 is the two orders of `Flips`.
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

from closelook.evaluation.scoring.faithfulness.flips import TARGET_LOGIT, Flips, Ranking, States, tie_order
from closelook.evaluation.scoring.faithfulness.scores import areas, with_gaps
from closelook.lrp_core.device.memory import is_out_of_memory
from closelook.lrp_core.device.transfer import to_device
from closelook.lrp_core.interventions.tokens import check_way, pixels_replaced, tokens_removed
from closelook.lrp_core.readers.readout import over_vocabulary
from closelook.lrp_core.records.kinds import DELETE, RESAMPLE
from closelook.lrp_core.records.types import Batch
from closelook.lrp_core.views.guard import undisturbed
from closelook.lrp_core.views.view import ModelView

log = logging.getLogger(__name__)
Item = tuple[Mapping[str, Any], States]  # a view row and its states
INSTEAD = "instead"  # key of a view row: the tokens [T] that replace removed ones


@dataclass(frozen=True)
class Outputs:
    """The model's outputs in each state [M], or at each point of curves [...]; NaN where logits are not finite."""

    logit: np.ndarray  # of the target
    log_probability: np.ndarray  # of the target, over the whole vocabulary
    #: 1 or 0: the target's logit is above the foil's or, without a foil, above every other token's. For rows with a
    #: gold label (`gold_id`): this label's logit is above every other label's.
    correct: np.ndarray
    foil: np.ndarray  # logit of the foil; of the target without a foil

    @property
    def probability(self) -> np.ndarray:
        """The probability of the target."""
        return np.exp(self.log_probability)

    @classmethod
    def mean(cls, draws: Sequence[Outputs]) -> Outputs:
        """Mean logits and probabilities over draws; a state is correct if more than half of its draws are."""
        if len(draws) == 1:
            return draws[0]
        every = np.array([[draw.logit, draw.log_probability, draw.correct, draw.foil] for draw in draws])
        logit, _, correct, foil = every.mean(axis=0)
        log_probability = np.logaddexp.reduce(every[:, 1]) - np.log(len(draws))
        majority = np.where(np.isnan(correct), np.nan, correct > 1 / 2)
        return cls(logit, log_probability, majority, foil)

    def at(self, points: np.ndarray) -> Outputs:
        """The outputs at `points`, indices of states, in the shape of `points`."""
        return Outputs(*(getattr(self, field.name)[points] for field in fields(self)))


class Flipper:
    """Runs perturbed samples through a model in batches of `token_budget` tokens, padding included.

    `way` is the perturbation (see :func:`tokens_removed`); masked tokens become `mask_id`, resampled ones the row's
    `instead`, and removed pixels or patches of images `fill`, by channel. If memory runs out, the budget is halved for
    this batch and the following ones. Raises UserError for a perturbation that the model does not support.
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
        self.computed = 0  # rows that ran: distinct states
        self.asked = 0  # rows that would run if every point of every curve did
        self.halved = 0  # how often memory ran out

    def run(self, samples: Sequence[Item]) -> list[Outputs]:
        """The outputs [M] of each sample's states; a sample is a view row and its states.

        Raises the errors of the model; an out-of-memory error only if a single row is too large.
        """
        rows = _Rows.of(samples, self.way == DELETE)
        by_row = np.empty((4, len(rows.lengths)))  # the fields of Outputs for every row
        order, start = rows.by_length(), 0
        while start < len(order):
            size = max(1, self.token_budget // rows.lengths[order[start]])
            chosen = order[start : start + size]
            outputs = self._within_memory(rows, chosen)
            if outputs is None:  # only after the exception is gone is the memory of the failed batch free again
                self._halve(len(chosen) * int(rows.lengths[chosen[0]]))
                continue
            by_row[:, chosen] = outputs
            start += size
        self.computed += len(order)
        self.asked += sum(states.asked for _, states in samples)
        return [Outputs(*by_row[:, part]) for part in rows.parts()]

    def _halve(self, tokens: int) -> None:
        """Sets the budget to half of `tokens`, the size of the batch that ran out of memory."""
        if self.view.device.type == "cuda":
            torch.cuda.empty_cache()
        self.token_budget = tokens // 2
        self.halved += 1
        log.warning("out of memory with %d tokens in a batch: going on with %d", tokens, self.token_budget)

    def _within_memory(self, rows: _Rows, chosen: np.ndarray) -> np.ndarray | None:
        """Outputs [4, R] of the rows `chosen` [R]; None if memory ran out for several rows together."""
        try:
            return self._forward(rows.batch(chosen))
        except Exception as error:
            if len(chosen) == 1 or not is_out_of_memory(error):
                raise
        return None

    def _changed(self, states: _Stacked) -> AbstractContextManager[Batch]:
        """Inside, the model reads the yielded batch without its removed tokens or, in images, patches or pixels."""
        if states.batch.pixel_values is None or self.fill is None:
            instead = states.instead if self.way == RESAMPLE else self.mask_id
            return tokens_removed(self.view, states.batch, states.removed, self.way, instead)
        return nullcontext(pixels_replaced(self.view, states.batch, states.removed, self.fill))

    @torch.inference_mode()
    def _forward(self, states: _Stacked) -> np.ndarray:
        """The fields of Outputs [4, R] for one batch, NaN for rows with a value that is not finite."""
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
    removed: Tensor  # [R, T] or [R, H * W] bool, the removed tokens or pixels
    instead: Tensor | None  # [R, T] tokens that replace removed ones; None if the rows name none
    contrasted: Tensor  # [R] bool, True where a row is correct if its target is above its foil
    gold: Tensor  # [R] the gold labels, -1 for rows without


@dataclass(frozen=True)
class _Rows:
    """The states of all samples, one sample after the other, as rows that batches are made of."""

    samples: Sequence[Item]
    sample: np.ndarray  # [R] the index of the row's sample
    state: np.ndarray  # [R] the index of the row's state in its sample
    lengths: np.ndarray  # [R] tokens

    @classmethod
    def of(cls, samples: Sequence[Item], deleted: bool) -> _Rows:
        """The rows of `samples`; if tokens are `deleted`, removed tokens do not count in a row's length."""
        counts = [len(states.removed) for _, states in samples]
        state, lengths = [np.zeros(0, int)], [np.zeros(0, int)]  # of each sample [M]
        for row, states in samples:
            state.append(np.arange(len(states.removed)))
            lengths.append(len(row["input_ids"]) - states.removed.sum(axis=1) * deleted)
        sample = np.repeat(np.arange(len(samples)), counts)
        return cls(samples, sample, np.concatenate(state), np.concatenate(lengths))

    def by_length(self) -> np.ndarray:
        """The indices of the rows [R] from longest to shortest; of equal lengths, a sample's rows are together.

        The longest come first so that memory runs out in the first batch or not at all.
        """
        return np.lexsort((self.state, self.sample, -self.lengths))

    def parts(self) -> list[slice]:
        """The rows of each sample, as a slice into all rows."""
        ends = np.searchsorted(self.sample, np.arange(len(self.samples) + 1))
        return [slice(*ends_of_sample) for ends_of_sample in pairwise(ends.tolist())]

    def batch(self, chosen: np.ndarray) -> _Stacked:
        """The states `chosen` [R] as one batch: each row has its sample's tokens, and the mask of the removed ones.

        `chosen` are indices of the states of all samples.
        """
        samples, sample_of = np.unique(self.sample[chosen], return_inverse=True)  # sample_of [R]: index in `samples`
        views = [self.samples[sample][0] for sample in samples]
        # Each sample is collated once; its row is repeated for every state.
        batch = Batch.collate([_with_foil(view) for view in views], pad_id=0)
        repeated = {name: value[sample_of] for name, value in vars(batch).items() if value is not None}
        masks = [self.samples[sample][1].removed for sample in samples]  # [states of the sample, its tokens] each
        removed = np.zeros((len(chosen), max(mask.shape[1] for mask in masks)), bool)
        for i, mask in enumerate(masks):
            of_sample = sample_of == i
            removed[of_sample, : mask.shape[1]] = mask[self.state[chosen[of_sample]]]
        # A row that has a foil, and no prediction of its own, is correct if its target's logit is above its foil's.
        contrasted = torch.tensor(
            [view.get("foil_id") is not None and view.get("predicted_id") is None for view in views]
        )
        gold = torch.tensor([-1 if view.get("gold_id") is None else view["gold_id"] for view in views])
        instead = None
        if INSTEAD in views[0]:
            instead = pad_sequence([torch.as_tensor(view[INSTEAD]) for view in views], batch_first=True)[sample_of]
        stacked = replace(batch, **repeated)
        return _Stacked(stacked, torch.from_numpy(removed), instead, contrasted[sample_of], gold[sample_of])


def _with_foil(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The row with its target as foil if it has none, so that rows with and without a foil make one batch.

    The logit of such a foil is not used.
    """
    return {**row, "foil_id": row["target_id"] if row.get("foil_id") is None else row["foil_id"]}


@dataclass(frozen=True)
class PerturbedSample:
    """A sample and the states along the deletion curves of its variants."""

    row: Mapping[str, Any]
    counts: np.ndarray  # [2, S] numbers of removed tokens
    finite: np.ndarray  # [V] bool, True for variants whose relevance is finite
    states: States  # its only array of points is [finite V, 2, S]
    replacements: np.ndarray | None = None  # [D, T] tokens that replace removed ones, by draw

    @classmethod
    def of(cls, row: Mapping[str, Any], relevance: np.ndarray, flips: Flips, slot: bool) -> PerturbedSample:
        """The states of a view row with its masks, from `relevance` [V, T] (for pixels [V, H * W]).

        `slot` says that the row's position is a masked slot. If the row has a scope, only its tokens are removed. If
        tokens are resampled, the row holds `replacements` [D, T]. Raises UserError if no token may be removed.
        """
        chosen = flips.chosen(row, slot)
        pixels = row.get("pixel_values")
        picture = None if pixels is None else pixels.tobytes()
        ties = tie_order(row["input_ids"], flips.seed, picture=picture, size=len(chosen))
        ranking = Ranking.of(relevance, chosen, ties, keep_one=flips.way == DELETE)
        counts, removed = flips.states(ranking)
        replacements = row["replacements"] if flips.way == RESAMPLE else None
        return cls(row, counts, ranking.finite, States.of(removed[ranking.finite]), replacements)

    @property
    def rows(self) -> list[Mapping[str, Any]]:
        """The row once for each draw, with that draw's replacements; the row alone without draws."""
        if self.replacements is None:
            return [self.row]
        return [{**self.row, INSTEAD: tokens} for tokens in self.replacements]


@dataclass(frozen=True)
class Curves:
    """The deletion curves of a sample's variants; NaN where relevance or logits are not finite."""

    flips: Flips
    counts: np.ndarray  # [2, S] numbers of removed tokens
    logit: np.ndarray  # [V, 2, S] of the target
    probability: np.ndarray | None  # [V, 2, S]; None for a model that predicts a score
    correct: np.ndarray | None  # [V, 2, S] 1 or 0; None for a model that predicts a score
    target_id: int  # the token or class whose logit it is
    contrast: np.ndarray | None = None  # [V, 2, S] the target's logit minus the foil's; None without a foil

    def values(self, score: str) -> np.ndarray:
        """The curves [V, 2, S] of `score`, TARGET_LOGIT or CONTRAST."""
        if score == TARGET_LOGIT:
            return self.logit
        assert self.contrast is not None
        return self.contrast

    def areas(self, score: str = TARGET_LOGIT) -> dict[str, np.ndarray]:
        """`area_morf`, `area_lerf` and `delta_area` [V] of `score`; for curves that remove tokens one after another."""
        return areas(self.values(score), self.counts[0])


def compute_curves(
    view: ModelView, samples: Sequence[PerturbedSample], flips: Flips, token_budget: int
) -> tuple[list[Curves], Flipper]:
    """The curves of each sample, and the flipper, which counts the rows that ran and how often memory ran out.

    Raises UserError for a perturbation that the model does not support, and the errors of the model.
    """
    flipper = Flipper(view, flips.way, token_budget, flips.mask_id, flips.fill)
    outputs = iter(flipper.run([(row, sample.states) for sample in samples for row in sample.rows]))
    curves = []
    for sample in samples:
        by_state = Outputs.mean([next(outputs) for _ in sample.rows])
        at = by_state.at(sample.states.points[0])
        logit = with_gaps(at.logit, sample.finite)
        probability = correct = contrast = None
        if not view.predicts_score:
            probability, correct = with_gaps(at.probability, sample.finite), with_gaps(at.correct, sample.finite)
        if sample.row.get("foil_id") is not None:
            contrast = with_gaps(at.logit - at.foil, sample.finite)
        curves.append(Curves(flips, sample.counts, logit, probability, correct, sample.row["target_id"], contrast))
    return curves, flipper
