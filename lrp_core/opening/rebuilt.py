"""Rebuilds layers of a model so that rules and readers can put hooks on them.

* Layers that share a block, as in ALBERT, get modules of their own.
* Layers of torch's `nn.TransformerEncoder` get modules for what they compute by functions: `nn.MultiheadAttention`
  keeps its projections in one parameter, the layers apply their activation by a function, and both have fast paths that
  run none of their modules.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from closelook.lrp_core.families import Family
from closelook.lrp_core.parts.layers import ADDED_WEIGHTS
from closelook.lrp_core.records.types import UnsupportedModel

#: Activations by transformers' name: the function that torch's layers call, and a module that computes the same.
_ACTIVATIONS = {"relu": (nn.functional.relu, nn.ReLU), "gelu": (nn.functional.gelu, nn.GELU)}


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


class SeparateAttention(nn.Module):
    """Self-attention with the weights of an `nn.MultiheadAttention`, whose projections are modules.

    Saving it saves the original's weights.
    """

    batch_first = True  # an attribute that nn.TransformerEncoderLayer reads
    in_proj_bias = None  # without it nn.TransformerEncoderLayer does not take its fast path

    def __init__(self, packed: nn.MultiheadAttention, config: PretrainedConfig) -> None:
        super().__init__()
        self.config = config  # has the attention implementation: the eager kernel takes additive masks, others bool
        self._packed = [packed]  # in a list, so that torch does not register it as a submodule
        self.num_heads = packed.num_heads
        biases = (None,) * 3 if packed.in_proj_bias is None else packed.in_proj_bias.chunk(3)
        self.query, self.key, self.value = map(_linear, packed.in_proj_weight.chunk(3), biases)
        self.output = _linear(packed.out_proj.weight, packed.out_proj.bias)

    def forward(
        self,
        hidden: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        need_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attention from `hidden` [B, T, D] to itself: output [B, T, D] and weights [B, H, T, T] (or None).

        `key` and `value` must be `hidden`; `key_padding_mask` [B, T] is True or -inf on padding. Raises
        UnsupportedModel for another use.
        """
        if attn_mask is not None or is_causal or key is not hidden or value is not hidden:
            raise UnsupportedModel(
                "layers of torch's TransformerEncoder are supported with self-attention and a padding mask only"
            )
        projected = (projection(hidden) for projection in (self.query, self.key, self.value))
        query, keys, values = (states.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for states in projected)
        mask = None
        if key_padding_mask is not None:
            is_padding = key_padding_mask if key_padding_mask.dtype == torch.bool else key_padding_mask < 0
            mask = ~is_padding[:, None, None].expand(-1, 1, hidden.shape[1], -1)
            if self.config._attn_implementation.endswith("eager"):
                least = torch.finfo(hidden.dtype).min
                mask = torch.zeros_like(mask, dtype=hidden.dtype).masked_fill(~mask, least)
        context, weights = self.attend(query, keys, values, mask)
        return self.output(context.flatten(2)), weights if need_weights else None

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """The attention kernel: context [B, T, H, K] and weights [B, H, T, T] from queries, keys, values [B, H, T, K].

        `mask` [B, 1, T, T] is True where a query may attend to a key, or it is additive.
        """
        scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
        if mask is not None and mask.dtype == torch.bool:
            scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        elif mask is not None:
            scores = scores + mask
        weights = scores.softmax(dim=-1)
        return (weights @ value).transpose(1, 2), weights

    def state_dict(self, *args: Any, **options: Any) -> Any:
        """The state of the original attention module."""
        return self._packed[0].state_dict(*args, **options)


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """A linear layer that shares these weights."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias, requires_grad=False)
    return layer


def separated(model: PreTrainedModel, family: Family) -> PreTrainedModel:
    """The model, with the attention and activations of torch's layers replaced by modules, if its family is `packed`.

    Other models are returned unchanged. Raises UnsupportedModel for layers that differ from the family's description.
    """
    if family.qkv != "packed":
        return model
    holder: Any = model.get_submodule(family.blocks.rsplit(".", 1)[0])
    holder.use_nested_tensor = False  # else the encoder asks its first layer for the packed weights
    for number, layer in enumerate(model.get_submodule(family.blocks).children()):
        attention: Any = layer.get_submodule(family.attention)
        if isinstance(attention, SeparateAttention):
            continue
        activation = getattr(layer, family.activation)
        faults = _faults(layer, attention, activation, family, getattr(model.config, family.activation_field))
        if faults:
            raise UnsupportedModel(f"{family.title}: layer {number} {' and '.join(faults)}")
        setattr(layer, family.attention, SeparateAttention(attention, model.config))
        if not isinstance(activation, nn.Module):
            setattr(layer, family.activation, dict(_ACTIVATIONS.values())[activation]())
    return model


def _faults(layer: Any, attention: Any, activation: Any, family: Family, named: str) -> list[str]:
    """The differences of a layer from the family's description, in words; `named` is the config's activation."""
    if not (isinstance(layer, nn.TransformerEncoderLayer) and isinstance(attention, nn.MultiheadAttention)):
        return ["is no torch.nn.TransformerEncoderLayer"]
    function, module = _ACTIVATIONS.get(named, (None, ()))
    is_known = activation is function or isinstance(activation, module)
    is_exact = getattr(activation, "approximate", "none") == "none"
    faults = []
    if not attention.batch_first:
        faults.append("has batch_first=False")
    if attention.add_zero_attn or attention.bias_k is not None:
        faults.append("has add_zero_attn or biases of keys and values")
    if layer.norm_first != (family.norm_order == "pre"):
        faults.append(f"has norm_first={layer.norm_first}")
    if not is_known or not is_exact:
        faults.append(f"has another activation than {named!r}")
    return faults
