"""Attention heads removed: they put out zero before the output projection.

A mask of the heads that are left is an input of a row. Rows whose masks agree in the lower layers share the forward of
those layers: a pass starts from one row a sample and branches where masks begin to differ.
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

from lrp_core.encoder_decoder import EncoderDecoderView
from lrp_core.transfer import to_device
from lrp_core.view import ModelView


@dataclass(frozen=True)
class HeadsLeft:
    """The rows of one layer of a pass: which row of the layer below each goes on from, and its heads that are left."""

    parents: Tensor  # [R] int64
    kept: Tensor  # [R, H] in the model's precision, 1 or 0


def branches(view: ModelView, masks: np.ndarray, *, shared: bool = True) -> Iterator[HeadsLeft]:
    """The layers of a pass over one sample and sorted, distinct `masks` [R, L, H], 1 where a head is left.

    Of an encoder-decoder only layers of the encoder are shared, since in the decoder attention layers of both kinds
    take turns. `shared` False runs every mask through all layers, as a comparison.
    """
    differs = (masks[1:] != masks[:-1]).any(-1)  # [R - 1, L], from the mask before
    fork = np.concatenate([[0], differs.argmax(-1) if shared else np.zeros(len(masks) - 1, dtype=int)])
    fork = np.minimum(fork, view.n_shared_layers)
    below = np.zeros(len(masks), dtype=np.int64)  # row of each mask in the layer below
    for layer in range(view.n_layers):
        new = fork <= layer
        kept = torch.from_numpy(masks[new, layer])
        yield HeadsLeft(*(to_device(one, view.device) for one in (torch.from_numpy(below[new]), kept.to(view.dtype))))
        below = new.cumsum() - 1


@contextmanager
def heads_removed(view: ModelView, layers: Sequence[HeadsLeft]) -> Iterator[None]:
    """Inside, rows branch before each block, and removed heads put out zero before the output projection.

    The backbone then returns as many rows as the last of `layers` has. Of an encoder-decoder they branch before each
    block of the encoder and before the decoder.
    """
    with ExitStack() as undo:
        for attention, layer in zip(view.attentions, layers, strict=True):
            undo.callback(attention.output.register_forward_pre_hook(partial(_zero_heads, layer=layer)).remove)
        if isinstance(view, EncoderDecoderView):
            blocks, before_decoder = view.encoder_blocks, partial(_branch_decoder, layers=layers, view=view)
            undo.callback(view.decoder_stack.register_forward_pre_hook(before_decoder, with_kwargs=True).remove)
        else:
            blocks = view.blocks
        for block, layer in zip(blocks, layers, strict=False):
            undo.callback(block.module.register_forward_pre_hook(partial(_branch_rows, layer=layer)).remove)
        yield


def _branch_decoder(
    _: nn.Module,
    args: tuple[Any, ...],
    inputs: dict[str, Any],
    *,
    layers: Sequence[HeadsLeft],
    view: EncoderDecoderView,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Inputs of the decoder: the encoder's states [R below, T, D] branch, all else [B, ...] is that of its sample."""
    *below, first = layers[: view.n_encoder_layers + 1]
    sample = first.parents
    for layer in reversed(below):
        sample = layer.parents[sample]
    own = {name: inputs[name] for name in ("inputs_embeds", "attention_mask", "encoder_attention_mask")}
    repeated = {name: value[sample.to(value.device)] for name, value in own.items()}
    read = inputs["encoder_hidden_states"]
    return args, {**inputs, **repeated, "encoder_hidden_states": read[first.parents.to(read.device)]}


def _branch_rows(_: nn.Module, args: tuple[Tensor, ...], *, layer: HeadsLeft) -> tuple[Tensor, ...]:
    hidden, *rest = args  # [R of the layer below, T, D]
    return (hidden[layer.parents.to(hidden.device)], *rest)


def _zero_heads(_: nn.Module, args: tuple[Tensor, ...], *, layer: HeadsLeft) -> tuple[Tensor]:
    (context,) = args  # [R, T, H * K]
    kept = layer.kept.to(context.device)[:, None, :, None]  # [R, 1, H, 1]
    return ((context.unflatten(-1, (kept.shape[2], -1)) * kept).flatten(-2),)
