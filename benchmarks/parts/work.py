"""Work of a backward pass on any machine: its operations, and the bytes that they read and write.

Two methods that do the same work and differ in time tell of the machine, or of what calling an operation costs.
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
    """`product_bytes` are those of matrix products, which no rule can spare."""

    operations: float = 0.0
    moved_bytes: int = 0
    product_bytes: int = 0


class Counting(TorchDispatchMode):
    """Counts what is computed inside the `with`; operations that only look at their input differently are free."""

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
