"""Restores a model that belongs to the caller after it was wrapped, changed and run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from transformers import PretrainedConfig

from lrp_core.views.guard import lock_of


@contextmanager
def left_as_it_was(model: nn.Module) -> Iterator[None]:
    """Inside, only this thread may use the model, and may wrap, change and run it; afterwards it is restored.

    Restored are modules, their order, hooks, modes (training or evaluation) and other attributes, parameters and
    whether they require gradients, and the fields of configs. The numbers in tensors are not restored.
    """
    with lock_of(model):
        modules = [module.__dict__ for module in model.modules()]
        configs = {id(value): value for fields in modules for value in fields.values() if _is_config(value)}
        kept = [_Kept(fields) for fields in (*modules, *(config.__dict__ for config in configs.values()))]
        takes_gradients = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
        try:
            yield
        finally:
            for attributes in kept:
                attributes.restore()
            for parameter, takes in takes_gradients:
                parameter.requires_grad_(takes)


def _is_config(value: Any) -> bool:
    """True for a config of transformers."""
    return isinstance(value, PretrainedConfig)


class _Kept:
    """A copy of an object's attributes, and of the entries of attributes that are dictionaries (submodules, hooks)."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self._fields = fields
        self._values = dict(fields)
        self._entries = {name: dict(value) for name, value in fields.items() if isinstance(value, dict)}

    def restore(self) -> None:
        """Set the attributes, and the entries of dictionaries, to what they were; the objects stay the same ones."""
        self._fields.clear()
        self._fields.update(self._values)
        for name, entries in self._entries.items():
            dictionary = self._values[name]
            dictionary.clear()
            dictionary.update(entries)
