"""Attention heads removed: they put out zero before the output projection.

A mask of the heads that are left is an input of a row. Rows whose masks agree in the lower layers share the forward of
those layers: a pass starts from one row a sample and branches where masks begin to differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from lrp_core.view import ModelView


@dataclass(frozen=True)
class HeadsLeft:
    """The rows of one layer of a pass: which row of the layer below each goes on from, and its heads that are left."""

    parents: Tensor  # [R] int64
    kept: Tensor  # [R, H] in the model's precision, 1 or 0


def branches(view: ModelView, masks: np.ndarray, *, shared: bool = True) -> Iterator[HeadsLeft]:
    """The layers of a pass over one sample and sorted, distinct `masks` [R, L, H], 1 where a head is left.

    `shared` False runs every mask through all layers, as a comparison.
    """
    differs = (masks[1:] != masks[:-1]).any(-1)  # [R - 1, L], from the mask before
    fork = np.concatenate([[0], differs.argmax(-1) if shared else np.zeros(len(masks) - 1, dtype=int)])
    below = np.zeros(len(masks), dtype=np.int64)  # row of each mask in the layer below
    for layer in range(view.n_layers):
        new = fork <= layer
        kept = torch.from_numpy(masks[new, layer])
        yield HeadsLeft(torch.from_numpy(below[new]).to(view.device), kept.to(view.device, view.dtype))
        below = new.cumsum() - 1


@contextmanager
def heads_removed(view: ModelView, layers: Sequence[HeadsLeft]) -> Iterator[None]:
    """Inside, rows branch before each block, and removed heads put out zero before the output projection.

    The backbone then returns as many rows as the last of `layers` has.
    """
    with ExitStack() as undo:
        for block, layer in zip(view.blocks, layers, strict=True):
            undo.callback(block.module.register_forward_pre_hook(partial(_branch_rows, layer=layer)).remove)
            undo.callback(block.output.register_forward_pre_hook(partial(_zero_heads, layer=layer)).remove)
        yield


def _branch_rows(_: nn.Module, args: tuple[Tensor, ...], *, layer: HeadsLeft) -> tuple[Tensor, ...]:
    hidden, *rest = args  # [R of the layer below, T, D]
    return (hidden[layer.parents.to(hidden.device)], *rest)


def _zero_heads(_: nn.Module, args: tuple[Tensor, ...], *, layer: HeadsLeft) -> tuple[Tensor]:
    (context,) = args  # [R, T, H * K]
    kept = layer.kept.to(context.device)[:, None, :, None]  # [R, 1, H, 1]
    return ((context.unflatten(-1, (kept.shape[2], -1)) * kept).flatten(-2),)
