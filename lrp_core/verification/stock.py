"""The logits of the stock model, called as its users call it, and those that are explained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from closelook.lrp_core.device.precision import wide
from closelook.lrp_core.records.types import Batch
from closelook.lrp_core.views.view import ModelView


def stock_logits(view: ModelView, row: Mapping[str, Any]) -> Tensor:
    """The stock model's logits [V] of all tokens or labels at the readout position of a row, which runs alone."""
    if view.kind.images:
        inputs = {"pixel_values": torch.as_tensor(row["pixel_values"])[None].to(view.device, view.dtype)}
    else:
        names = ("input_ids", "token_type_ids", "decoder_input_ids")
        known = {name: row[name] for name in names if row.get(name) is not None}
        inputs = {name: torch.tensor([ids], device=view.device) for name, ids in known.items()}
    with torch.no_grad():
        logits = view.model(**inputs).logits[0]
    return wide(logits if view.kind.labels else logits[row["position"]])


def explained_logits(view: ModelView, batch: Batch) -> Tensor:
    """The view's logits [B, V] of all tokens or labels at the readout positions of a batch."""
    with torch.no_grad():
        return view.all_logits(batch)[:, -1]


@contextmanager
def without_biases(model: nn.Module) -> Iterator[None]:
    """Inside, all biases of the model are zero, which their names tell; afterwards they have their old values."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    biases = [tensor for name, tensor in tensors if name.endswith("bias") and tensor.is_floating_point()]
    kept = [bias.detach().clone() for bias in biases]
    try:
        for bias in biases:
            bias.detach().zero_()
        yield
    finally:
        for bias, value in zip(biases, kept, strict=True):
            bias.detach().copy_(value)
