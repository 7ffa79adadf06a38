"""The work of a backward pass: the number of its operations, and the bytes that they read and write.

Work is the same on every machine. If two methods do the same work in different times, the machine makes the difference,
or the cost of starting an operation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


@dataclass
class Counted:
    """Counts of work. `product_bytes` are the bytes of matrix products, which every rule needs."""

    operations: float = 0.0
    moved_bytes: int = 0
    product_bytes: int = 0


class Counting(TorchDispatchMode):
    """Counts what is computed inside the `with`. Views of a tensor, such as transposes, count as no work."""

    def __init__(self) -> None:
        super().__init__()
        self.work = Counted()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.is_view or func is torch.ops.aten.detach.default:
            return result
        leaves = [leaf for leaf in tree_iter((args, kwargs, result)) if isinstance(leaf, Tensor)]
        size = sum(leaf.numel() * leaf.element_size() for leaf in leaves)
        self.work.operations += 1
        self.work.moved_bytes += size
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.bmm, torch.ops.aten.addmm):
            self.work.product_bytes += size
        return result
