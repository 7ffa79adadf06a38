"""A slow, obvious form of the rules: record the factors that they hold constant, and run the model again with them.

The derivative of the second run, by differences of the model's outputs alone, is the relevance of the rules. Nothing of
`lrp_core.operations` is used.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

SOFTMAX = (F.softmax, torch.softmax, Tensor.softmax)
ACTIVATIONS = (F.gelu, F.silu, F.relu, torch.tanh, Tensor.tanh, F.tanh, torch.nn.functional.relu)
DEVIATIONS = (torch.rsqrt, Tensor.rsqrt)
PRODUCTS = (torch.mul, Tensor.mul, Tensor.__mul__, torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm)
STEP = 2.0**-13


class Replay(TorchFunctionMode):
    """Inside, a model runs with `factors` on its tokens' embeddings.

    The first run records what later runs hold constant. `uniform`: products share equally and the softmax has its
    gradient (AttnLRP); else the softmax and the gates of products are constant (LRP).
    """

    def __init__(self, ids: Tensor, uniform: bool) -> None:
        super().__init__()
        self.ids, self.uniform = ids, uniform
        self.factors = torch.ones(ids.shape, dtype=torch.float64)
        self.tape: list[Any] = []
        self.at: int | None = None  # None: the run that records
        self.gates: dict[int, Tensor] = {}  # results of activations, by id

    def held(self, value: Any) -> Any:
        """The value of the run that records."""
        if self.at is None:
            self.tape.append(value)
            return value
        self.at += 1
        return self.tape[self.at - 1]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.embedding and torch.equal(args[0], self.ids):
            return (func(*args, **kwargs) * self.factors[..., None]).requires_grad_(self.at is None)
        if func in SOFTMAX and not self.uniform:
            return self.held(func(*args, **kwargs).detach())
        if func in DEVIATIONS:
            return self.held(func(*args, **kwargs).detach())
        if func is F.layer_norm:
            return self.layer_norm(*args, **kwargs)
        if func in ACTIVATIONS:
            z = args[0]
            y = z * self.held((func(*args, **kwargs) / z).detach())
            self.gates[id(y)] = y
            return y
        if func in PRODUCTS and isinstance(args[1], Tensor):
            return self.product(func, *args)
        return func(*args, **kwargs)

    def layer_norm(self, x: Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Tensor:
        deviation = self.held((x.detach().var(-1, unbiased=False, keepdim=True) + eps).rsqrt())
        y = (x - x.mean(-1, keepdim=True)) * deviation * (1 if weight is None else weight)
        return y if bias is None else y + bias

    def product(self, func: Any, a: Tensor, b: Tensor) -> Tensor:
        both = self.held(a.requires_grad and b.requires_grad and a is not b)
        if not both:
            return func(a, b)
        first, second = self.held(a.detach()), self.held(b.detach())
        if self.uniform:
            return (func(a, second) + func(first, b)) / 2
        if id(a) in self.gates:
            return func(first, b)
        if id(b) in self.gates:
            return func(a, second)
        return (func(a, second) + func(first, b)) / 2


def relevance_by_replay(run: Any, ids: Tensor, uniform: bool) -> Tensor:
    """Relevance [T] of the tokens `ids` [1, T]; `run()` returns the explained number of the model."""
    mode = Replay(ids, uniform)
    with torch.enable_grad(), mode:
        run()
    relevance = []
    for token in range(ids.shape[1]):
        numbers = []
        for step in (STEP, -STEP):
            mode.factors[0, token] = 1 + step
            mode.at = 0
            with torch.no_grad(), mode:
                numbers.append(run())
        mode.factors[0, token] = 1
        relevance.append((numbers[0] - numbers[1]) / (2 * STEP))
    return torch.stack(relevance)
