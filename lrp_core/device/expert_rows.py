"""Multiplies rows by the weights of their experts, without the CPU knowing how many rows each expert has.

These numbers are on the device where the router ran. If the CPU read them to decide shapes, it would wait for the
device in every layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.overrides import handle_torch_function, has_torch_function_unary

_LEAST_ROWS = 64  # of a tile; with fewer, a GPU takes longer to read an expert's weights than to multiply by them


@dataclass(frozen=True)
class ExpertRows:
    """The S = N k rows of N tokens, one for each of a token's k experts.

    They are sorted by expert, then by rank, then by token, as in transformers' eager code.
    """

    chosen: Tensor  # [N, k] int64, the experts of each token
    tokens: Tensor  # [S] int64, the token of each row
    ranks: Tensor  # [S] int64, the column of `chosen` that each row belongs to
    row_of: Tensor  # [N, k] int64, the row of each entry of `chosen`
    ends: Tensor  # [E] int64, one more than the last row of each expert

    @classmethod
    def of(cls, chosen: Tensor, n_experts: int) -> ExpertRows:
        """The rows for the experts `chosen` [N, k] by a router."""
        n, k = chosen.shape
        experts, order = chosen.T.flatten().sort(stable=True)
        numbers = torch.arange(n_experts, device=chosen.device, dtype=experts.dtype)
        row_of = order.argsort().view(k, n).T  # the inverse of the permutation `order`
        ends = torch.searchsorted(experts, numbers, right=True)
        return cls(chosen, order % n, order // n, row_of, ends)

    def of_expert(self, expert: int) -> tuple[Tensor, Tensor]:
        """True for tokens that are sent to the expert [N], and their rows [N] (0 for other tokens)."""
        chooses = self.chosen == expert
        return chooses.any(1), (self.row_of * chooses).sum(1)

    def product(self, x: Tensor, weight: Tensor) -> Tensor:
        """Each row of x [S, I] times its expert's part of `weight` [E, O, I]: [S, O]. Only x gets a gradient."""
        if x.device.type != "cpu":
            return multiply_rows(x, weight, self)
        by_expert = x.tensor_split(self.ends[:-1])
        return torch.cat([nn.functional.linear(*pair) for pair in zip(by_expert, weight, strict=True)])

    def multiplied(self, x: Tensor, weight: Tensor) -> Tensor:
        """As `product`, without gradients."""
        if _has_kernel(x, weight):
            return nn.functional.grouped_mm(x.contiguous(), weight.mT, offs=self.ends.int())
        y = x.new_empty(len(x) + 1, weight.shape[1])  # the last row takes the results of unused rows of tiles
        for expert, rows in self._tiles:
            of_expert = weight[expert].reshape(weight.shape[1:]).to(x.dtype)
            inputs = x[rows.clamp_max(len(x) - 1)]
            y.index_copy_(0, rows, nn.functional.linear(inputs, of_expert))
        return y[:-1]

    @cached_property
    def _tiles(self) -> Sequence[tuple[int | Tensor, Tensor]]:
        """Tiles of M rows of one expert each, as (expert, rows [M]); unused rows of a tile have the number S.

        Every expert has a first tile; experts with more than M rows have further ones. With M = S / E the first tiles
        have S rows in all and the further ones at most S, so the work at most doubles, however tokens are spread.
        The number of further tiles is a constant; which experts they belong to is computed on the device, and only for
        them weights are copied.
        """
        n_tokens, n_rows, n_experts = len(self.chosen), len(self.tokens), len(self.ends)
        size = min(n_tokens, max(_LEAST_ROWS, -(-n_rows // n_experts)))
        further = torch.arange(0 if size == n_tokens else n_rows // size, device=self.ends.device)
        counts = self.ends.diff(prepend=self.ends.new_zeros(1))
        starts = self.ends - counts
        needed = (counts - 1).clamp_min(0) // size  # further tiles of each expert
        needed_until = needed.cumsum(0)
        expert = torch.searchsorted(needed_until, further, right=True).clamp_max(n_experts - 1)
        number = further - (needed_until - needed)[expert] + 1  # of a further tile among its expert's tiles
        first_rows = torch.cat([starts, starts[expert] + number * size])
        last_rows = torch.cat([self.ends, self.ends[expert]])[:, None]
        rows = first_rows[:, None] + torch.arange(size, device=self.ends.device)
        rows = rows.masked_fill(rows >= last_rows, n_rows)
        return list(zip([*range(n_experts), *expert[:, None].unbind()], rows.unbind(), strict=True))


def multiply_rows(x: Tensor, weight: Tensor, rows: ExpertRows) -> Tensor:
    """The result of `ExpertRows.product` on a device, as a torch function that rules on operations can see."""
    if has_torch_function_unary(x):
        result: Tensor = handle_torch_function(multiply_rows, (x,), x, weight, rows)
        return result
    return _Product.apply(x, weight, rows)


class _Product(Function):
    """`ExpertRows.product` as an autograd function: without it autograd would keep the copied weights in memory."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, rows: ExpertRows) -> Tensor:
        ctx.rows = rows
        ctx.save_for_backward(weight)
        return rows.multiplied(x, weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (weight,) = ctx.saved_tensors
        return ctx.rows.multiplied(gradient, weight.mT), None, None


def _has_kernel(x: Tensor, weight: Tensor) -> bool:
    """True if torch's `grouped_mm` does not wait for the device: in bfloat16, on GPUs of compute capability 9 or 10.

    For other dtypes and GPUs it copies the ends of the groups to the CPU (torch's GroupedBlas.cpp).
    """
    if not x.is_cuda or x.dtype != torch.bfloat16 or weight.dtype != torch.bfloat16:
        return False
    aligned = all(size % 8 == 0 for size in weight.shape[1:])  # 16 bytes
    return aligned and torch.cuda.get_device_capability(x.device)[0] in (9, 10)
