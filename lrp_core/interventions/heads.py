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

from lrp_core.device.transfer import to_device
from lrp_core.views.encoder_decoder import EncoderDecoderView
from lrp_core.views.view import ModelView


@dataclass(frozen=True)
class HeadsLeft:
    """The rows of a layer in a pass: the row of the layer below that each continues, and its remaining heads."""

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
        parents, kept = torch.from_numpy(below[new]), torch.from_numpy(masks[new, layer])
        yield HeadsLeft(to_device(parents, view.device), to_device(kept.to(view.dtype), view.device))
        below = new.cumsum() - 1


@contextmanager
def heads_removed(view: ModelView, layers: Sequence[HeadsLeft]) -> Iterator[None]:
    """Inside, rows branch before each block, and removed heads put out zero before the output projection.

    The backbone then returns as many rows as the last of `layers` has. Of an encoder-decoder they branch before each
    block of the encoder and before the decoder.
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
    """Inputs of the decoder: the encoder's states [R below, T, D] branch, all else [B, ...] is that of its sample.

    `layers` are those of the encoder and the first of the decoder.
    """
    *below, first = layers
    sample = first.parents
    for layer in reversed(below):
        sample = layer.parents[sample]
    branched = dict(inputs)
    for name in ("inputs_embeds", "attention_mask", "encoder_attention_mask"):
        branched[name] = inputs[name][sample.to(inputs[name].device)]
    states = inputs["encoder_hidden_states"]
    branched["encoder_hidden_states"] = states[first.parents.to(states.device)]
    return args, branched


def _branch_rows(_: nn.Module, args: tuple[Tensor, ...], *, layer: HeadsLeft) -> tuple[Tensor, ...]:
    hidden, *rest = args  # [R of the layer below, T, D]
    return (hidden[layer.parents.to(hidden.device)], *rest)


def _zero_heads(_: nn.Module, args: tuple[Tensor, ...], *, layer: HeadsLeft) -> tuple[Tensor]:
    (context,) = args  # [R, T, H * K]
    kept = layer.kept.to(context.device)[:, None, :, None]  # [R, 1, H, 1]
    return ((context.unflatten(-1, (kept.shape[2], -1)) * kept).flatten(-2),)
