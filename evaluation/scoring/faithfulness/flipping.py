"""Runs a model on perturbed samples: logit, probability and correctness of the explained token in every state.

A state is a set of removed ("flipped") tokens (see `flips`). Every distinct state of a sample runs once, or once for
each draw of replacement tokens, for all variants and orders together; rows of all samples are packed by length. Curves
follow AttnLRP B.2 (areas) and NormXLogit 5 (shares).

Shapes: M states of a sample, R rows of a batch, T tokens, V variants (methods, explanations ...), S states of a curve,
D draws; the axis of 2 is the two orders of `Flips`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from closelook.evaluation.scoring.faithfulness.flips import TARGET_LOGIT, Flips, Ranking, States, tie_order
from closelook.evaluation.scoring.faithfulness.scores import areas, with_gaps
from closelook.lrp_core.device.memory import is_out_of_memory
from closelook.lrp_core.interventions.tokens import check_way, pixels_replaced, tokens_removed
from closelook.lrp_core.records.kinds import DELETE, RESAMPLE
from closelook.lrp_core.records.types import Batch
from closelook.lrp_core.views.guard import undisturbed
from closelook.lrp_core.views.view import ModelView

log = logging.getLogger(__name__)
ViewRow = Mapping[str, Any]
Item = tuple[ViewRow, States]  # a view row and its states
INSTEAD = "instead"  # key of a view row: the tokens [T] that replace removed ones


class Outputs(NamedTuple):
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
        every = np.array(draws)  # [D, 4, M]
        logit, _, correct, foil = every.mean(axis=0)
        log_probability = np.logaddexp.reduce(every[:, 1]) - np.log(len(draws))
        majority = np.where(np.isnan(correct), np.nan, correct > 1 / 2)
        return cls(logit, log_probability, majority, foil)

    def at(self, points: np.ndarray) -> Outputs:
        """The outputs at `points`, indices of states, in the shape of `points`."""
        return Outputs(*(values[points] for values in self))


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
        outputs = np.empty((4, len(rows.lengths)))  # the fields of Outputs for every row
        # Longest first, so that memory runs out in the first batch or not at all; rows of a sample stay together.
        order, start = np.argsort(-rows.lengths, kind="stable"), 0
        while start < len(order):
            size = max(1, self.token_budget // rows.lengths[order[start]])
            chosen = order[start : start + size]
            computed = self._within_memory(rows, chosen)
            if computed is None:  # only after the exception is gone is the memory of the failed batch free again
                self._halve(len(chosen) * int(rows.lengths[chosen[0]]))
                continue
            outputs[:, chosen] = computed
            start += size
        self.computed += len(order)
        self.asked += sum(states.points.size for _, states in samples)
        ends = np.cumsum([len(states.removed) for _, states in samples])[:-1]
        return [Outputs(*part) for part in np.split(outputs, ends, axis=1)] if samples else []

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
            return self._forward(rows, chosen)
        except Exception as error:
            if len(chosen) == 1 or not is_out_of_memory(error):
                raise
        return None

    def _changed(self, batch: Batch, removed: Tensor, views: Sequence[ViewRow]) -> AbstractContextManager[Batch]:
        """Inside, the model reads the yielded batch without its removed tokens or, in images, patches or pixels."""
        if batch.pixel_values is not None and self.fill is not None:
            return nullcontext(pixels_replaced(self.view, batch, removed, self.fill))
        instead: Tensor | int | None = self.mask_id
        if self.way == RESAMPLE:
            instead = pad_sequence([torch.as_tensor(view[INSTEAD]) for view in views], batch_first=True)
        return tokens_removed(self.view, batch, removed, self.way, instead)

    @torch.inference_mode()
    def _forward(self, rows: _Rows, chosen: np.ndarray) -> np.ndarray:
        """The fields of Outputs [4, R] for the rows `chosen` [R], NaN for rows with a value that is not finite."""
        views = [rows.views[sample] for sample in rows.sample[chosen]]
        removed = pad_sequence([torch.from_numpy(rows.removed[at]) for at in chosen], batch_first=True)
        with undisturbed(self.view):
            with self._changed(rows.batch(chosen), removed, views) as changed:
                logits = self.view.all_logits(changed)[:, -1]
            target, foil = logits.gather(1, changed.explained_ids.to(logits.device)).unbind(-1)
            total, largest = logits.logsumexp(-1), logits.argmax(-1)
        read = (target, target - total.to(target), foil, largest, changed.target_ids.to(target.device))
        numbers = torch.stack([each.to(target.dtype) for each in read]).cpu().numpy()  # the only wait
        target, log_probability, foil, best, target_ids = numbers
        gold = np.array([-1 if view.get("gold_id") is None else view["gold_id"] for view in views])
        # A row that has a foil, and no prediction of its own, is correct if its target's logit is above its foil's.
        others = [view.get("foil_id") is None or view.get("predicted_id") is not None for view in views]
        by_best = np.array(others) | (gold >= 0)
        correct = np.where(by_best, best == np.where(gold < 0, target_ids, gold), target > foil)
        outputs = np.stack([target, log_probability, correct, foil])
        return np.where(np.isfinite(outputs).all(axis=0), outputs, np.nan)


@dataclass(frozen=True)
class _Rows:
    """The states of all samples, one sample after the other, as rows that batches are made of."""

    views: Sequence[ViewRow]  # of each sample
    sample: np.ndarray  # [R] the index of the row's sample
    removed: Sequence[np.ndarray]  # of each row, [T] bool or for pixels [H * W]
    lengths: np.ndarray  # [R] tokens

    @classmethod
    def of(cls, samples: Sequence[Item], deleted: bool) -> _Rows:
        """The rows of `samples`; if tokens are `deleted`, removed tokens do not count in a row's length."""
        sample = np.repeat(np.arange(len(samples)), [len(states.removed) for _, states in samples])
        views, removed = [view for view, _ in samples], [mask for _, states in samples for mask in states.removed]
        lengths = [len(views[at]["input_ids"]) - deleted * mask.sum() for at, mask in zip(sample, removed, strict=True)]
        return cls(views, sample, removed, np.array(lengths, int))

    def batch(self, chosen: np.ndarray) -> Batch:
        """The rows `chosen` [R] as a batch, before any token is removed. Each sample is collated once.

        A row without a foil has its target as foil, so that all make one batch; the logit of this foil is not used.
        """
        samples, at = np.unique(self.sample[chosen], return_inverse=True)
        views = [self.views[sample] for sample in samples]
        foils = [view["target_id"] if view.get("foil_id") is None else view["foil_id"] for view in views]
        whole = Batch.collate([{**view, "foil_id": foil} for view, foil in zip(views, foils, strict=True)], pad_id=0)
        return replace(whole, **{name: value[at] for name, value in vars(whole).items() if value is not None})


@dataclass(frozen=True)
class PerturbedSample:
    """A sample and the states along the deletion curves of its variants."""

    row: Mapping[str, Any]
    counts: np.ndarray  # [2, S] numbers of removed tokens
    finite: np.ndarray  # [V] bool, True for variants whose relevance is finite
    states: States  # its points are [finite V, 2, S]
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
        at = Outputs(*(with_gaps(values, sample.finite) for values in by_state.at(sample.states.points)))
        probability, correct = (None, None) if view.predicts_score else (at.probability, at.correct)
        contrast = None if sample.row.get("foil_id") is None else at.logit - at.foil
        curves.append(Curves(flips, sample.counts, at.logit, probability, correct, sample.row["target_id"], contrast))
    return curves, flipper
