"""Gives layers that share a block, as in ALBERT, modules of their own, so that readers can put hooks on them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from closelook.lrp_core.families import Family
from closelook.lrp_core.parts.layers import ADDED_WEIGHTS
from closelook.lrp_core.records.types import UnsupportedModel


class _Layers(nn.ModuleList):
    """A list with a block for each layer; saving it saves only the blocks that layers share."""

    def __init__(self, shared: Sequence[nn.Module], count: int) -> None:
        every = [shared[int(i / (count / len(shared)))] for i in range(count)]  # rounds as transformers' code does
        super().__init__(map(_with_own_modules, every))
        self._shared = [nn.ModuleList(shared)]  # in a list, so that torch does not register them as submodules

    def state_dict(self, *args: Any, **options: Any) -> Any:
        """The state of the shared blocks, as in the original model."""
        return self._shared[0].state_dict(*args, **options)


def unrolled(model: PreTrainedModel, family: Family) -> PreTrainedModel:
    """The model, with modules of their own for layers that share a block; the weights stay shared.

    Other models are returned unchanged. Raises UnsupportedModel for such a model on several devices.
    """
    if family.group_field is None:
        return model
    if len(set(vars(model).get("hf_device_map", {}).values())) > 1:
        raise UnsupportedModel(f"{family.title}, whose layers share weights, need one device: leave out max_memory")
    path, name = family.blocks.rsplit(".", 1)
    holder: Any = model.get_submodule(path)
    blocks = getattr(holder, name)
    if isinstance(blocks, _Layers):
        return model
    layers = model.config.num_hidden_layers
    setattr(holder, name, _Layers(list(blocks), layers))
    holder.config = copy.copy(model.config)
    setattr(holder.config, family.group_field, layers)
    return model


def _with_own_modules(block: nn.Module) -> nn.Module:
    """A copy of a block with new modules and the same weight tensors, adapters included."""
    kept = (*block.parameters(), *block.buffers(), *(vars(part).get("config") for part in block.modules()))
    copied = copy.deepcopy(block, {id(tensor): tensor for tensor in kept})
    for copied_part, shared in zip(copied.modules(), block.modules(), strict=True):
        if shared in ADDED_WEIGHTS:
            ADDED_WEIGHTS[copied_part] = ADDED_WEIGHTS[shared]
    return copied
