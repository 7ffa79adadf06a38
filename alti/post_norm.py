"""ALTI for post-norm models (Ferrando et al. 2022): the row of the predicted position of the product of all maps."""

from __future__ import annotations

from torch import Tensor

from alti.layers import Layer, visiting
from alti.maps import Rollout, post_norm_map, post_norm_row
from alti.transformed import Chunk
from lrp_core.types import Batch
from lrp_core.view import ModelView


def mixing(view: ModelView, batch: Batch, chunk: Chunk) -> tuple[Tensor, Tensor]:
    """Logits [B, 2] of target and foil ([B, 1] without foils), and contributions [B, T] that sum to one."""
    rollout, last = Rollout(), view.n_layers - 1
    found: list[Tensor] = []

    def visit(layer: Layer) -> None:
        if layer.index < last:
            rollout.multiply(post_norm_map(layer, chunk))
        else:
            row = post_norm_row(layer, batch.position.to(layer.residual.device))
            found.append(rollout.to_inputs(row)[:, 0])

    with visiting(view, visit):
        logits = view.logits(view.hidden(batch), batch)
    return logits, found[0]
