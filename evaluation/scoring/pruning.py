"""Head pruning (Close Look 5.3): accuracy as heads are removed, along many removal orders at once.

A curve removes heads one after another. A point of a curve is a mask of the heads that are left. A mask is an input of
a row of the batch, so that a forward pass computes many points of many curves.

Shapes: C curves, S points of a curve, M distinct masks, N samples, L layers, H heads, R rows of a pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from closelook.evaluation.scoring.head_orders import RemovalOrder, removed_at_points
from closelook.lrp_core.device.transfer import to_host
from closelook.lrp_core.interventions.heads import HeadsLeft, branches, heads_removed, rows_branch
from closelook.lrp_core.operations.forward import logits_at
from closelook.lrp_core.records.types import Batch
from closelook.lrp_core.views.guard import undisturbed
from closelook.lrp_core.views.view import ModelView


class Sweep:
    """Runs a model under the head masks of `curves` at points `step` heads apart; equal masks run once.

    Masks that agree in their lower layers share the computation of these layers. `shared=False` runs every mask through
    all layers instead, as a reference.
    """

    def __init__(self, view: ModelView, curves: Sequence[RemovalOrder], step: int = 1, *, shared: bool = True) -> None:
        self.view, self.curves, self._shared = view, curves, shared
        total = view.n_layers * view.n_heads
        self.removed = removed_at_points(total, step)  # [S]
        masks = np.concatenate([self._masks(curve) for curve in curves])  # [C * S, L * H]
        packed, points = np.unique(np.packbits(masks, axis=1), axis=0, return_inverse=True)
        self.points = points.reshape(len(curves), -1)  # [C, S] indices into masks
        unpacked = np.unpackbits(packed, axis=1, count=total)
        self.masks = unpacked.reshape(-1, view.n_layers, view.n_heads)  # [M, L, H], 1 where a head is left
        self._passes: dict[int, list[list[HeadsLeft]]] = {}

    def _masks(self, curve: RemovalOrder) -> np.ndarray:
        """The masks [S, L * H] at the points of a curve, 1 where a head is left."""
        # A head is left at a point if its turn in the removal order comes after the heads that the point removes.
        turn = np.argsort(curve.heads)  # [L * H], each head's index in the removal order
        return (turn >= self.removed[:, None]).astype(np.uint8)

    def right(self, rows: Iterable[Mapping[str, Any]], token_budget: int) -> tuple[np.ndarray, np.ndarray]:
        """(correct [C, S, N] bool at every point, finite [N] bool: the row's logits are finite with all heads).

        A row is correct if its target logit exceeds the foil's; a row with a gold label (`gold_id`), if that label's
        logit exceeds every other label's. A pass has as many masks as fit into `token_budget` tokens.
        """
        margins: list[Tensor] = []  # [M] of each row; they stay on the device, so that no row waits for a transfer
        for row in rows:
            gold = row.get("gold_id")
            judged = row if gold is None else {**row, "target_id": gold, "foil_id": None}
            margins.append(self.margins(Batch.collate([judged], pad_id=0), token_budget))
        if not margins:
            return np.zeros((*self.points.shape, 0), bool), np.zeros(0, bool)
        unpruned = int(self.points[0, 0])  # index of the mask that leaves every head
        stacked = torch.stack(margins, 1)  # [M, N]
        right, finite = to_host([stacked > 0, stacked[unpruned].isfinite()])
        return right.numpy()[self.points], finite.numpy()

    @torch.inference_mode()
    def margins(self, sample: Batch, token_budget: int) -> Tensor:
        """Target logit minus foil logit under every mask [M], for a batch of one sample.

        A label without a foil is compared with the largest logit of any other label.
        """
        sample = sample.to(self.view.device)
        return torch.cat([self._margins(sample, layers) for layers in self.passes(sample, token_budget)])

    def _margins(self, sample: Batch, layers: list[HeadsLeft]) -> Tensor:
        """Target logit minus foil logit [R] under the masks of one pass."""
        rows = len(layers[-1].parents)
        known = {name: value for name, value in vars(sample).items() if value is not None}
        repeated = {name: value.expand(rows, *value.shape[1:]) for name, value in known.items()}
        with undisturbed(self.view):
            batch = replace(sample, **repeated)
            with heads_removed(self.view, layers):
                _, logits = logits_at(self.view, batch, sample if rows_branch(self.view) else batch)
        logits = logits[:, -1]  # [R, V]
        target = logits.gather(1, batch.target_ids[:, None].to(logits.device))
        if batch.foil_ids is not None:
            return (target - logits.gather(1, batch.foil_ids[:, None].to(logits.device)))[:, 0]
        others = logits.scatter(1, batch.target_ids[:, None].to(logits.device), -torch.inf)
        return target[:, 0] - others.amax(-1)

    def passes(self, sample: Batch, token_budget: int) -> list[list[HeadsLeft]]:
        """The passes that run all masks: for each pass, what `heads_removed` needs to know of every layer.

        A pass holds as many masks as fit into `token_budget` tokens. Masks are sorted, so that the masks of a pass
        agree in as many lower layers as possible. Passes are kept, since samples of one length share them.
        """
        size = max(1, token_budget // sample.every_id.shape[1])
        if size not in self._passes:
            chunks = [self.masks[start : start + size] for start in range(0, len(self.masks), size)]
            self._passes[size] = [list(branches(self.view, chunk, shared=self._shared)) for chunk in chunks]
        return self._passes[size]
