"""A check that code of an installed package leaves the model as it was: all others compute on the same model."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from closelook.lrp_core.records.types import UserError


class ModelAltered(UserError):
    """Code of a package changed the model, which must be opened again; `methods` are the names of those that did."""

    def __init__(self, message: str, methods: Collection[str] = ()) -> None:
        super().__init__(message)
        self.methods = tuple(methods)


@contextmanager
def left_unaltered(model: nn.Module, who: str, methods: Collection[str] = ()) -> Iterator[None]:
    """Raise ModelAltered after the block, also after an error in it, if it changed the model.

    The message begins with `who` ("method mine"). Torch's default dtype and its gradient mode are restored.
    """
    before, dtype, takes_gradients = _state(model), torch.get_default_dtype(), torch.is_grad_enabled()
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(takes_gradients)
        after = _state(model)
        if after != before:
            changed = next(name for name in chain(before, after) if before.get(name) != after.get(name))
            raise ModelAltered(f"{who} changed the model ({changed}): it must leave the model as it was", methods)


def _state(model: nn.Module) -> Mapping[str, Any]:
    """What identifies the numbers that a model computes: its weights and buffers, the hooks on it, its config.

    A tensor is identified by its address and the number of writes into it, so that nothing is copied or compared.
    """
    state: dict[str, Any] = {}
    for kind, tensors in (("parameter", model.named_parameters()), ("buffer", model.named_buffers())):
        state |= {f"{kind} {name}": _identity(tensor) for name, tensor in tensors}
    for name, module in model.named_modules():
        for attribute, entries in vars(module).items():
            if "hooks" in attribute and isinstance(entries, dict):
                state[f"{attribute.strip('_')} of {name or 'the model'}"] = dict(entries)
    config = getattr(model, "config", None)
    if config is not None:
        state["its config"] = config.to_dict()
    return state


def _identity(tensor: Tensor) -> tuple[int, int]:
    """The address of a tensor, and how often it was written to (0 if torch does not count it)."""
    return tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version
