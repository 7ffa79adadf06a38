"""The weights of a module, on whichever device or disk they are, with the weights of an adapter added."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

from accelerate.utils import align_module_device
from torch import Tensor, nn

#: For modules with an adapter that is not merged: returns the tensor to add to the module's weight, in its layout.
ADDED_WEIGHTS: WeakKeyDictionary[nn.Module, Callable[[], Tensor]] = WeakKeyDictionary()


@contextmanager
def weights_of(module: nn.Module) -> Iterator[Any]:
    """Inside, an object with the module's `weight` (an adapter's added) and `bias`, loaded if they are offloaded.

    Tensors that were read inside stay valid afterwards.
    """
    with align_module_device(module):
        if module in ADDED_WEIGHTS:
            added = ADDED_WEIGHTS[module]().detach()
            whole: Any = module
            yield SimpleNamespace(weight=whole.weight.detach() + added, bias=whole.bias)
        else:
            yield module
