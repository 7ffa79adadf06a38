"""Temporary changes of weights in place, which are undone bit by bit afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from accelerate.utils import has_offloaded_params
from torch import Tensor, nn

from closelook.lrp_core.records.types import UnsupportedModel
from closelook.lrp_core.views.view import ModelView


def check_weights(view: ModelView) -> None:
    """Raise UnsupportedModel for a model with offloaded weights or an adapter that is not merged into the weights."""
    name = type(view.model).__name__
    for module in view.model.modules():
        if has_offloaded_params(module):
            raise UnsupportedModel(f"{name} has offloaded weights, which cannot be changed: leave out max_memory")
        if type(module).__module__.startswith("peft."):
            raise UnsupportedModel(f"{name} has an adapter beside its weights: merge it to change them")


def tensors_of(model: nn.Module) -> list[Tensor]:
    """All parameters and buffers of a model, each once."""
    return list({id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}.values())


@contextmanager
def restored(view: ModelView) -> Iterator[dict[int, Tensor]]:
    """Inside, weights and buffers may be changed in place; afterwards they have their old values.

    Yields the old values, on the CPU, by the tensor's `id`.
    """
    tensors = tensors_of(view.model)
    with torch.no_grad():
        kept = {id(tensor): tensor.detach().cpu().clone() for tensor in tensors}
        try:
            yield kept
        finally:
            for tensor in tensors:
                tensor.copy_(kept[id(tensor)])
