"""Rollout of post-norm models: the readout position's row of the product of all layers' maps, and of each map."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from alti.globenc import norm_map, norm_row
from alti.layers import Layer, visiting
from alti.maps import Rollout, post_norm_map, post_norm_row
from alti.transformed import Chunk
from lrp_core.device.precision import wide
from lrp_core.parts.norms import NormView
from lrp_core.records.types import Batch
from lrp_core.views.view import ModelView


@dataclass(frozen=True)
class Maps:
    """Functions that compute the map of a layer."""

    whole: Callable[[Layer, Chunk], Tensor]  # the whole map [B, Ti, Tj]
    row: Callable[[Layer, Tensor], Tensor]  # its row [B, 1, Tj] for the destination at position [B] of each sample
    lacks_deviations: bool = False  # rows must still be divided by the standard deviations of the block's norms


ALTI = Maps(post_norm_map, post_norm_row)  # Ferrando et al. 2022
GLOBENC = Maps(norm_map, norm_row)  # Modarressi et al. 2022
RAW_GLOBENC = Maps(partial(norm_map, normalise=False), partial(norm_row, normalise=False), lacks_deviations=True)


def mixing(view: ModelView, batch: Batch, chunk: Chunk, maps: Maps) -> tuple[Tensor, Tensor, Tensor]:
    """Logits [B, 2] of target and foil ([B, 1] without foils), contributions [B, T], and those by layer [B, L, T].

    Contributions are the readout position's row of the product of all maps, those by layer its rows of each map. They
    sum to 1 if the rows of maps do.
    """
    rollout, last = Rollout(), view.n_layers - 1
    rows: list[Tensor] = []

    def at_position(of_tokens: Tensor) -> Tensor:
        device = of_tokens.device
        return of_tokens[torch.arange(len(batch), device=device), batch.position.to(device)]

    def visit(layer: Layer) -> None:
        position = batch.position.to(layer.residual.device)
        if layer.index == last:
            rows.append(maps.row(layer, position)[:, 0])
            return
        layer_map = maps.whole(layer, chunk)
        rows.append(at_position(layer_map))
        rollout.multiply(layer_map)

    def divide(_: nn.Module, args: tuple[Any, ...], *, index: int, norm: NormView) -> None:
        state = wide(args[0])
        deviation = (state.var(-1, unbiased=False, keepdim=True) + norm.eps).sqrt()  # [B, T, 1]
        rows[index] = rows[index] / at_position(deviation).to(rows[index].device)
        if index < last:
            rollout.divide(deviation)

    with ExitStack() as undo:
        undo.enter_context(visiting(view, visit))
        for index, block in enumerate(view.blocks if maps.lacks_deviations else ()):
            for norm in block.sum_norms:
                hook = partial(divide, index=index, norm=norm)
                undo.enter_context(norm.module.register_forward_pre_hook(hook))
        logits = view.logits(view.hidden(batch), batch)
    tokens = rollout.to_inputs(rows[-1].unsqueeze(1))[:, 0]
    return logits, tokens, torch.stack([row.to(tokens) for row in rows], 1)
