"""Neuron ablation: the explained number after the first neurons of a ranking are ablated (AttnLRP 4.3).

An ablated neuron is set to zero at all positions. A method that finds the neurons that matter lowers the explained
number faster than a random ranking, and than a ranking by activation.

Shapes: N numbers of ablated neurons, L layers, F neurons of a layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from closelook.evaluation.scoring.head_orders import RANDOM
from closelook.lrp_core.interventions.neurons import neurons_set
from closelook.lrp_core.methods.baselines import seeds_of
from closelook.lrp_core.neurons.activations import peaks_of
from closelook.lrp_core.operations.forward import explained_numbers
from closelook.lrp_core.readers.predictions import with_predictions
from closelook.lrp_core.records.types import Batch
from closelook.lrp_core.records.variants import pieces, tiled
from closelook.lrp_core.views.guard import undisturbed
from closelook.lrp_core.views.view import ModelView

Neurons = Sequence[tuple[int, int]]  # (layer, neuron), in the order of their ablation


@dataclass(frozen=True)
class NeuronAblation:
    """Ablates growing numbers of a model's neurons and records the explained number."""

    view: ModelView
    counts: tuple[int, ...]  # [N] numbers of neurons to ablate, besides zero
    explanation: str
    seed: int  # of random rankings
    token_budget: int

    @torch.inference_mode()
    def sample(self, row: Mapping[str, Any], rankings: Mapping[str, Neurons | None]) -> dict[str, np.ndarray]:
        """The explained number [1 + N] by ranking, without ablation and with each of `counts`; NaN if not finite.

        `row` is a sample of the view schema. A ranking whose neurons are None is computed for the sample: by
        activation, or at random from the seed and the sample's tokens.
        """
        (row,) = with_predictions(self.view, [row])
        batch = Batch.collate([row], pad_id=0)
        with undisturbed(self.view):
            orders, changes = {}, []
            for name, neurons in rankings.items():
                order = [(layer, neuron) for layer, neuron in neurons] if neurons else self._ranked(name, batch)
                orders[name] = order
                changes += [dict.fromkeys(order[:count], 0.0) for count in self.counts]
            numbers = self._numbers(batch.to(self.view.device), [{}, *changes])
        by_ranking = numbers[1:].reshape(len(orders), len(self.counts))
        return {name: np.append(numbers[:1], ablated) for name, ablated in zip(orders, by_ranking, strict=True)}

    def _numbers(self, batch: Batch, changes: Sequence[Mapping[tuple[int, int], float]]) -> np.ndarray:
        """The explained number of the sample under each of `changes`, which map neurons to values."""
        parts = []
        for part in pieces(range(len(changes)), batch.input_ids.shape[1], self.token_budget):
            rows = tiled(batch, len(part))
            with neurons_set(self.view, [changes[i] for i in part]):
                _, numbers = explained_numbers(self.view, rows, [self.explanation])
            parts.append(numbers[self.explanation].double().cpu().numpy())
        explained = np.concatenate(parts)
        return np.where(np.isfinite(explained), explained, np.nan)

    def _ranked(self, name: str, batch: Batch) -> Neurons:
        """The neurons to ablate first, as many as the largest count, for a batch of one sample.

        The ranking `name` is RANDOM, or by the largest activation over positions, which is -inf for neurons that a
        layer does not have and for those of experts that no token was sent to.
        """
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
            self.view.logits(batch)
        largest = peaks.values[0].flatten().sort(descending=True, stable=True)
        active = largest.indices[largest.values > -torch.inf][:most].tolist()
        return [divmod(at, self.view.n_neurons) for at in active]
