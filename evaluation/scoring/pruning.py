"""Head pruning (Close Look 5.3): accuracy after each removal along many curves at once.

A curve removes heads one after another. A point of a curve is a mask of the heads that are left, and a mask is an
input of a row, so that one forward serves many points of many curves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evaluation.scoring.head_orders import RemovalOrder, removed_at_points
from lrp_core.guard import undisturbed
from lrp_core.interventions.heads import HeadsLeft, branches, heads_removed
from lrp_core.readout import label_logits
from lrp_core.transfer import to_host
from lrp_core.types import Batch, UserError
from lrp_core.view import ModelView


class Sweep:
    """The points of `curves`, `step` heads apart, with equal masks merged.

    `shared` False runs every mask through all layers, as a comparison.
    """

    def __init__(self, view: ModelView, curves: Sequence[RemovalOrder], step: int = 1, *, shared: bool = True) -> None:
        self.view, self.curves, self._shared = view, curves, shared
        total = view.n_layers * view.n_heads
        self.removed = removed_at_points(total, step)  # [S]
        masks = np.concatenate([self._masks(curve) for curve in curves])  # [C * S, L * H]
        packed, points = np.unique(np.packbits(masks, axis=1), axis=0, return_inverse=True)
        self.points = points.reshape(len(curves), -1)  # [C, S] into masks
        unpacked = np.unpackbits(packed, axis=1, count=total)
        self.masks = unpacked.reshape(-1, view.n_layers, view.n_heads)  # [M, L, H], 1 where a head is left
        self.n = 0  # samples that `accuracy` is over
        self._passes: dict[int, list[list[HeadsLeft]]] = {}

    def _masks(self, curve: RemovalOrder) -> np.ndarray:
        """[S, L * H], 1 where a head is left."""
        turn = np.argsort(curve.heads)  # [L * H], when each head goes
        return (turn >= self.removed[:, None]).astype(np.uint8)

    def accuracy(self, rows: Iterable[Mapping[str, Any]], token_budget: int) -> np.ndarray:
        """Share of view `rows` that are right, for every point [C, S]; rows as `right` has them.

        Rows whose logits are not finite with all heads are left out; `n` says how many are not. Raises UserError
        without rows.
        """
        right, finite = self.right(rows, token_budget)
        self.n = int(finite.sum())
        if self.n == 0:
            raise UserError("there are no samples to evaluate pruned models on")
        return right[:, :, finite].sum(2) / self.n

    def right(self, rows: Iterable[Mapping[str, Any]], token_budget: int) -> tuple[np.ndarray, np.ndarray]:
        """The rows whose target logit exceeds the foil's at every point [C, S, N], and is finite with all heads [N].

        Of rows with a gold label (`gold_id`), that label's logit must exceed every other one's. A pass has as many
        masks as keep its rows within `token_budget` tokens.
        """
        margins: list[Tensor] = []  # of a row each, [M]; they stay on the device, where no row is waited for
        for row in rows:
            gold = row.get("gold_id")
            asked = row if gold is None else {**row, "target_id": gold, "foil_id": None}
            margins.append(self.margins(Batch.collate([asked], pad_id=0), token_budget))
        if not margins:
            return np.zeros((*self.points.shape, 0), bool), np.zeros(0, bool)
        whole = int(self.points[0, 0])
        every = torch.stack(margins, 1)  # [M, N]
        right, finite = to_host([every > 0, every[whole].isfinite()])
        return right.numpy()[self.points], finite.numpy()

    @torch.inference_mode()
    def margins(self, sample: Batch, token_budget: int) -> Tensor:
        """Target logit minus foil logit under every mask [M], for a batch of one sample.

        Of a label without a foil, minus the largest logit of any other label.
        """
        sample = sample.to(self.view.device)
        return torch.cat([self._margins(sample, layers) for layers in self.passes(sample, token_budget)])

    def _margins(self, sample: Batch, layers: list[HeadsLeft]) -> Tensor:
        rows = len(layers[-1].parents)
        known = {name: value for name, value in vars(sample).items() if value is not None}
        repeated = {name: value.expand(rows, *value.shape[1:]) for name, value in known.items()}
        with undisturbed(self.view):
            with heads_removed(self.view, layers):
                hidden = self.view.hidden(sample)  # [R, T, D], although the sample is one row
            batch = replace(sample, **repeated)
            state = self.view.prediction(hidden, batch)
            logits = self.view.unembed(state, batch)
            if batch.foil_ids is not None:
                return logits[:, 0] - logits[:, 1]
            every = label_logits(self.view, state)
        others = every.scatter(1, batch.target_ids[:, None].to(every.device), -torch.inf)
        return logits[:, 0] - others.amax(-1).to(logits.device)

    def passes(self, sample: Batch, token_budget: int) -> list[list[HeadsLeft]]:
        """The layers of each pass. Masks are sorted, so those of a pass agree in as many lower layers as can be."""
        size = max(1, token_budget // sample.every_id.shape[1])
        if size not in self._passes:
            chunks = [self.masks[start : start + size] for start in range(0, len(self.masks), size)]
            self._passes[size] = [list(branches(self.view, chunk, shared=self._shared)) for chunk in chunks]
        return self._passes[size]
