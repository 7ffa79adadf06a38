"""Temporary changes of weights in place, undone exactly afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from accelerate.utils import has_offloaded_params
from torch import Tensor, nn

from lrp_core.parts.weights import ADDED_WEIGHTS
from lrp_core.records.types import UnsupportedModel
from lrp_core.views.view import ModelView


def check_weights(view: ModelView) -> None:
    """Raises UnsupportedModel for a model with offloaded weights or with an adapter beside them."""
    name = type(view.model).__name__
    for module in view.model.modules():
        if has_offloaded_params(module):
            raise UnsupportedModel(f"{name} has offloaded weights, which cannot be changed: leave out max_memory")
        if module in ADDED_WEIGHTS:
            raise UnsupportedModel(f"{name} has an adapter beside its weights: merge it to change them")


def tensors_of(model: nn.Module) -> list[Tensor]:
    """Every weight and every buffer once."""
    return list({id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}.values())


@contextmanager
def restored(view: ModelView) -> Iterator[dict[int, Tensor]]:
    """Inside, weights may be changed in place; gives their values before, on the CPU, by the weight's `id`."""
    tensors = tensors_of(view.model)
    with torch.no_grad():
        kept = {id(tensor): tensor.detach().cpu().clone() for tensor in tensors}
        try:
            yield kept
        finally:
            put_back(tensors, kept)


def put_back(tensors: list[Tensor], kept: dict[int, Tensor]) -> None:
    """These weights are what they were."""
    with torch.no_grad():
        for tensor in tensors:
            tensor.copy_(kept[id(tensor)])
