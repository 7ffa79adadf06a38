"""Maps of post-norm models: the row of the predicted position of the product of all of them, and of each by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from alti.globenc import norm_map, norm_row
from alti.layers import Layer, visiting
from alti.maps import Rollout, post_norm_map, post_norm_row
from alti.transformed import Chunk
from lrp_core.types import Batch
from lrp_core.view import ModelView


@dataclass(frozen=True)
class Maps:
    """How a layer's map is made: whole [B, Ti, Tj], or its row [B, 1, Tj] for one destination for each sample [B]."""

    whole: Callable[[Layer, Chunk], Tensor]
    row: Callable[[Layer, Tensor], Tensor]


ALTI = Maps(post_norm_map, post_norm_row)  # Ferrando et al. 2022
GLOBENC = Maps(norm_map, norm_row)  # Modarressi et al. 2022


def mixing(view: ModelView, batch: Batch, chunk: Chunk, maps: Maps) -> tuple[Tensor, Tensor, Tensor]:
    """Logits [B, 2] of target and foil ([B, 1] without foils), contributions [B, T], and each layer's own [B, L, T].

    Contributions sum to one.
    """
    rollout, last = Rollout(), view.n_layers - 1
    rows: list[Tensor] = []
    at = torch.arange(len(batch))

    def visit(layer: Layer) -> None:
        position = batch.position.to(layer.residual.device)
        if layer.index == last:
            rows.append(maps.row(layer, position)[:, 0])
            return
        layer_map = maps.whole(layer, chunk)
        rows.append(layer_map[at.to(position.device), position])
        rollout.multiply(layer_map)

    with visiting(view, visit):
        logits = view.logits(view.hidden(batch), batch)
    tokens = rollout.to_inputs(rows[-1].unsqueeze(1))[:, 0]
    return logits, tokens, torch.stack([row.to(tokens) for row in rows], 1)
