"""A model that belongs to the caller: whatever wraps it, reads it or runs it leaves it as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from transformers import PretrainedConfig

from lrp_core.views.guard import lock_of


@contextmanager
def left_as_it_was(model: nn.Module) -> Iterator[None]:
    """Inside, the model is this thread's alone and may be wrapped, changed and run; afterwards it is what it was.

    That holds for its modules, their order, hooks, modes (training or evaluation) and other attributes, for its
    parameters and whether they take gradients, and for the fields of its configs. Numbers in tensors are not watched.
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
    return isinstance(value, PretrainedConfig)


class _Kept:
    """Attributes of an object as they are now, with the entries of those that are dictionaries (submodules, hooks)."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self._fields = fields
        self._values = dict(fields)
        self._entries = {name: dict(value) for name, value in fields.items() if isinstance(value, dict)}

    def restore(self) -> None:
        self._fields.clear()
        self._fields.update(self._values)
        for name, entries in self._entries.items():
            dictionary = self._values[name]
            dictionary.clear()
            dictionary.update(entries)
