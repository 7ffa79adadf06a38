"""Ablation of attention heads: their outputs are zeroed before the output projection.

Every row has a mask of the heads that are kept. Rows whose masks agree in the lower layers share the forward pass of
these layers: it starts with one row for a sample, and rows branch at the layer where their masks begin to differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from closelook.lrp_core.device.transfer import to_device
from closelook.lrp_core.views.encoder_decoder import EncoderDecoderView
from closelook.lrp_core.views.view import ModelView


@dataclass(frozen=True)
class HeadsLeft:
    """The R rows of one layer: the row of the layer below that each continues, and the heads that are kept."""

    parents: Tensor  # [R] int64, indices of rows of the layer below
    kept: Tensor  # [R, H] in the model's precision, 1 for heads that are kept, else 0


def branches(view: ModelView, masks: np.ndarray, *, shared: bool = True) -> Iterator[HeadsLeft]:
    """Yield the rows of each layer for one sample under sorted, distinct `masks` [R, L, H], 1 for heads that are kept.

    In an encoder-decoder rows share layers of the encoder only, since self-attention and cross-attention take turns in
    the decoder but not on the axis L. With `shared` False, and in models whose rows do not branch, every mask has a row
    in all layers.
    """
    shared = shared and rows_branch(view)
    differs = (masks[1:] != masks[:-1]).any(-1)  # [R - 1, L], True where a mask differs from the one before it
    fork = np.concatenate([[0], differs.argmax(-1) if shared else np.zeros(len(masks) - 1, dtype=int)])
    fork = np.minimum(fork, view.n_shared_layers)
    below = np.zeros(len(masks), dtype=np.int64)  # the row that each mask has in the layer below
    for layer in range(view.n_layers):
        new = fork <= layer
        parents, kept = torch.from_numpy(below[new]), torch.from_numpy(masks[new, layer])
        yield HeadsLeft(to_device(parents, view.device), to_device(kept.to(view.dtype), view.device))
        below = new.cumsum() - 1


def rows_branch(view: ModelView) -> bool:
    """True for a model that returns as many rows as leave its last layer; a causal classifier counts its input's."""
    return not (view.kind.labels and view.kind.causal)


@contextmanager
def heads_removed(view: ModelView, layers: Sequence[HeadsLeft]) -> Iterator[None]:
    """Inside, rows branch before each block as `layers` say, and the outputs of removed heads are zeroed.

    The model then returns the rows of the last of `layers`. In an encoder-decoder rows branch before each block of the
    encoder and before the decoder.
    """
    with ExitStack() as undo:
        for attention, layer in zip(view.attentions, layers, strict=True):
            undo.enter_context(attention.output.register_forward_pre_hook(partial(_zero_heads, layer=layer)))
        blocks = view.blocks
        if isinstance(view, EncoderDecoderView):
            blocks = view.encoder_blocks
            before_decoder = partial(_branch_decoder, layers=layers[: len(blocks) + 1])
            undo.enter_context(view.decoder_stack.register_forward_pre_hook(before_decoder, with_kwargs=True))
        for block, layer in zip(blocks, layers, strict=False):
            undo.enter_context(block.module.register_forward_pre_hook(partial(_branch_rows, layer=layer)))
        yield


def _branch_decoder(_: nn.Module, args: Any, inputs: dict[str, Any], *, layers: Sequence[HeadsLeft]) -> Any:
    """Pre-hook of the decoder: gives it a row for each row of its first layer.

    The encoder's states have rows of the layer below; ids and masks have one row for each sample. `layers` are the
    encoder's and the decoder's first.
    """
    *below, first = layers
    sample = first.parents
    for layer in reversed(below):
        sample = layer.parents[sample]
    branched = dict(inputs)
    for name, value in inputs.items():
        if isinstance(value, Tensor):
            rows = first.parents if name == "encoder_hidden_states" else sample
            branched[name] = value[rows.to(value.device)]
    return args, branched


def _branch_rows(_: nn.Module, args: tuple[Tensor, ...], *, layer: HeadsLeft) -> tuple[Tensor, ...]:
    """Pre-hook of a block: makes its R rows from those of the layer below."""
    hidden, *rest = args  # [rows of the layer below, T, D]
    return (hidden[layer.parents.to(hidden.device)], *rest)


def _zero_heads(_: nn.Module, args: tuple[Tensor, ...], *, layer: HeadsLeft) -> tuple[Tensor]:
    """Pre-hook of an output projection: zeroes the outputs of removed heads."""
    (context,) = args  # [R, T, H * K]
    kept = layer.kept.to(context.device)[:, None, :, None]  # [R, 1, H, 1]
    return ((context.unflatten(-1, (kept.shape[2], -1)) * kept).flatten(-2),)
