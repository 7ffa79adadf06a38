"""Weights of a module, wherever they are, with what an adapter adds to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

from accelerate.utils import align_module_device
from torch import Tensor, nn

#: What is added to the weights of modules that an adapter stands beside, laid out like them.
ADDED_WEIGHTS: WeakKeyDictionary[nn.Module, Callable[[], Tensor]] = WeakKeyDictionary()


@contextmanager
def weights_of(module: nn.Module) -> Iterator[Any]:
    """Something with the module's `weight` and `bias`, even if they are offloaded, and with what an adapter adds.

    Tensors read inside stay valid afterwards.
    """
    with align_module_device(module):
        if module in ADDED_WEIGHTS:
            added = ADDED_WEIGHTS[module]().detach()
            whole: Any = module
            yield SimpleNamespace(weight=whole.weight.detach() + added, bias=whole.bias)
        else:
            yield module
