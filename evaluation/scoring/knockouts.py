"""Knock-outs: what is left of the explained number when the first neurons of a ranking are gone (AttnLRP 4.3).

A neuron that is gone is zero at all positions, or has its mean over a corpus there.

The neuron counterpart of head pruning: does a method find the neurons that matter, sooner than chance and activation?
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from evaluation.scoring.head_orders import RANDOM
from lrp_core.activations import peaks_of
from lrp_core.guard import undisturbed
from lrp_core.interventions.neurons import neurons_set
from lrp_core.methods.random_baseline import seeds_of
from lrp_core.readout import explained_numbers, with_predictions
from lrp_core.types import Batch
from lrp_core.variants import pieces, tiled
from lrp_core.view import ModelView

Neurons = Sequence[tuple[int, int]]  # (layer, neuron), the first to go first


@dataclass(frozen=True)
class Knockout:
    """The removal of a model's neurons."""

    view: ModelView
    counts: tuple[int, ...]  # of neurons that are gone, beside none
    explanation: str
    seed: int
    token_budget: int
    means: Sequence[np.ndarray] | None = None  # [F] of each layer, what neurons that are gone have; None: zero

    @torch.inference_mode()
    def sample(self, row: Mapping[str, Any], rankings: Mapping[str, Neurons | None]) -> dict[str, np.ndarray]:
        """The explained number [1 + N] with none and with each of `counts` gone, by ranking; NaN where not finite.

        `row` is of the view schema. A ranking without neurons is made here: by activation, or at random, from the seed
        and what the sample is.
        """
        (row,) = with_predictions(self.view, [row])
        batch = Batch.collate([row], pad_id=0)
        with undisturbed(self.view):
            orders = {n: [(i, j) for i, j in own] if own else self._ranked(n, batch) for n, own in rankings.items()}
            changes = [self._gone(own[:count]) for own in orders.values() for count in self.counts]
            numbers = self._numbers(batch.to(self.view.device), [{}, *changes])
        by_ranking = numbers[1:].reshape(len(orders), len(self.counts))
        return {name: np.append(numbers[:1], own) for name, own in zip(orders, by_ranking, strict=True)}

    def _gone(self, neurons: Neurons) -> dict[tuple[int, int], float]:
        return {(layer, n): 0.0 if self.means is None else float(self.means[layer][n]) for layer, n in neurons}

    def _numbers(self, batch: Batch, changes: Sequence[Mapping[tuple[int, int], float]]) -> np.ndarray:
        parts = []
        for part in pieces(range(len(changes)), batch.input_ids.shape[1], self.token_budget):
            rows = tiled(batch, len(part))
            with neurons_set(self.view, [changes[i] for i in part]):
                _, numbers = explained_numbers(self.view, self.view.hidden(rows), rows, [self.explanation])
            parts.append(numbers[self.explanation].double().cpu().numpy())
        told = np.concatenate(parts)
        return np.where(np.isfinite(told), told, np.nan)

    def _ranked(self, name: str, batch: Batch) -> Neurons:
        names, most = self.view.neuron_names, max(self.counts)
        ends = np.cumsum([names.count(layer) for layer in range(self.view.n_layers)])
        if name == RANDOM:
            generator = np.random.default_rng([*seeds_of(batch, self.seed), 2])
            chosen = generator.permutation(ends[-1])[:most]
            layers = np.searchsorted(ends, chosen, side="right")
            starts = np.concatenate([[0], ends])[layers]
            return list(zip(layers.tolist(), (chosen - starts).tolist(), strict=True))
        batch = batch.to(self.view.device)
        with peaks_of(self.view, batch.attention_mask) as peaks:
            self.view.hidden(batch)
        largest = peaks.values[0].flatten().sort(descending=True, stable=True)
        active = largest.indices[largest.values > -torch.inf][:most].tolist()
        return [divmod(at, self.view.n_neurons) for at in active]
