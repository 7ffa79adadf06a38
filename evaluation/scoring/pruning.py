"""Head pruning (Close Look 5.3): accuracy after each removal along many curves at once.

A curve removes heads one after another. A point of a curve is a mask of the heads that are left, and a mask is an
input of a row, so that one forward serves many points of many curves. Points whose masks agree in the lower layers
share the forward of those layers: a pass starts from one row a sample and branches where masks begin to differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from evaluation.scoring.curves import Curve
from lrp_core.types import Batch, UserError
from lrp_core.view import ModelView


@dataclass(frozen=True)
class Layer:
    """The rows of one layer of a pass: which row of the layer below each goes on from, and its heads that are left."""

    parents: Tensor  # [R] int64
    kept: Tensor  # [R, H] in the model's precision, 1 or 0


class Sweep:
    """The points of `curves`, `step` heads apart, with equal masks merged.

    `shared` False runs every mask through all layers, as a comparison.
    """

    def __init__(self, view: ModelView, curves: Sequence[Curve], step: int = 1, *, shared: bool = True) -> None:
        self.view, self.curves, self._shared = view, curves, shared
        total = view.n_layers * view.n_heads
        self.removed = np.unique([*range(0, total, step), total])  # [S] heads removed at each point
        masks = np.concatenate([self._masks(curve) for curve in curves])  # [C * S, L * H]
        packed, points = np.unique(np.packbits(masks, axis=1), axis=0, return_inverse=True)
        self.points = points.reshape(len(curves), -1)  # [C, S] into masks
        unpacked = np.unpackbits(packed, axis=1, count=total)
        self.masks = unpacked.reshape(-1, view.n_layers, view.n_heads)  # [M, L, H], 1 where a head is left
        self._passes: dict[int, list[list[Layer]]] = {}

    def _masks(self, curve: Curve) -> np.ndarray:
        """[S, L * H], 1 where a head is left."""
        place = np.argsort(curve.heads)  # [L * H], when each head goes
        return (place >= self.removed[:, None]).astype(np.uint8)

    def accuracy(self, rows: Iterable[Mapping[str, Any]], token_budget: int) -> np.ndarray:
        """Share of view `rows` whose target logit exceeds the foil's, for every point [C, S].

        A pass has as many masks as keep its rows within `token_budget` tokens. Raises UserError without rows.
        """
        right, n = np.zeros(len(self.masks), dtype=np.int64), 0
        for row in rows:
            margins = self.margins(Batch.collate([row], pad_id=0), token_budget)
            right += (margins > 0).cpu().numpy()
            n += 1
        if n == 0:
            raise UserError("there are no samples to evaluate pruned models on")
        return (right / n)[self.points]

    @torch.inference_mode()
    def margins(self, sample: Batch, token_budget: int) -> Tensor:
        """Target logit minus foil logit under every mask [M], for a batch of one sample that has a foil."""
        sample = sample.to(self.view.device)
        return torch.cat([self._margins(sample, layers) for layers in self.passes(sample, token_budget)])

    def _margins(self, sample: Batch, layers: list[Layer]) -> Tensor:
        rows = len(layers[-1].parents)
        with heads_removed(self.view, layers):
            hidden = self.view.hidden(sample)  # [R, T, D], although the sample is one row
        repeated = {name: value.expand(rows, *value.shape[1:]) for name, value in vars(sample).items()}
        logits = self.view.logits(hidden, replace(sample, **repeated))
        return logits[:, 0] - logits[:, 1]

    def passes(self, sample: Batch, token_budget: int) -> list[list[Layer]]:
        """The layers of each pass. Masks are sorted, so those of a pass agree in as many lower layers as can be."""
        size = max(1, token_budget // sample.input_ids.shape[1])
        if size not in self._passes:
            chunks = [self.masks[start : start + size] for start in range(0, len(self.masks), size)]
            self._passes[size] = [list(self._branch(chunk)) for chunk in chunks]
        return self._passes[size]

    def _branch(self, masks: np.ndarray) -> Iterator[Layer]:
        """The layers of a pass over sorted, distinct masks [R, L, H]."""
        differs = (masks[1:] != masks[:-1]).any(-1)  # [R - 1, L], from the mask before
        fork = np.concatenate([[0], differs.argmax(-1) if self._shared else np.zeros(len(masks) - 1, dtype=int)])
        below = np.zeros(len(masks), dtype=np.int64)  # row of each mask in the layer below
        for layer in range(self.view.n_layers):
            new = fork <= layer
            kept = torch.from_numpy(masks[new, layer])
            yield Layer(
                torch.from_numpy(below[new]).to(self.view.device),
                kept.to(self.view.device, self.view.dtype),
            )
            below = new.cumsum() - 1


@contextmanager
def heads_removed(view: ModelView, layers: Sequence[Layer]) -> Iterator[None]:
    """Inside, rows branch before each block, and removed heads put out zero before the output projection."""
    with ExitStack() as undo:
        for block, layer in zip(view.blocks, layers, strict=True):
            undo.callback(block.module.register_forward_pre_hook(partial(_branch_rows, layer=layer)).remove)
            undo.callback(block.output.register_forward_pre_hook(partial(_zero_heads, layer=layer)).remove)
        yield


def _branch_rows(_: nn.Module, args: tuple[Tensor, ...], *, layer: Layer) -> tuple[Tensor, ...]:
    hidden, *rest = args  # [R of the layer below, T, D]
    return (hidden[layer.parents.to(hidden.device)], *rest)


def _zero_heads(_: nn.Module, args: tuple[Tensor, ...], *, layer: Layer) -> tuple[Tensor]:
    (context,) = args  # [R, T, H * K]
    kept = layer.kept.to(context.device)[:, None, :, None]  # [R, 1, H, 1]
    return ((context.unflatten(-1, (kept.shape[2], -1)) * kept).flatten(-2),)
