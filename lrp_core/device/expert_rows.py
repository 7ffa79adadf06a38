"""Products of rows with the weights of their experts, for which the host need not know how many rows each expert has.

That number is on the device where the router ran, and it decides shapes: a host that reads it waits in every layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

_LEAST_ROWS = 64  # of a tile: with fewer, a GPU reads an expert's weights for longer than it multiplies by them


@dataclass(frozen=True)
class ExpertRows:
    """A row for each token and each of its k experts, S = N k, in the order of experts, then of tokens."""

    chosen: Tensor  # [N, k] int64, the experts of each token
    tokens: Tensor  # [S] int64, the token of each row
    ranks: Tensor  # [S] int64, the column of `chosen` of each row
    row_of: Tensor  # [N, k] int64, the row of each choice
    ends: Tensor  # [E] int64, the row behind the last one of each expert

    @classmethod
    def of(cls, chosen: Tensor, n_experts: int) -> ExpertRows:
        """The rows of what a router chose [N, k]."""
        k = chosen.shape[1]
        experts, order = chosen.flatten().sort(stable=True)
        numbers = torch.arange(n_experts, device=chosen.device, dtype=experts.dtype)
        return cls(
            chosen=chosen,
            tokens=order // k,
            ranks=order % k,
            row_of=order.argsort().view_as(chosen),
            ends=torch.searchsorted(experts, numbers, right=True),
        )

    def of_expert(self, expert: int) -> tuple[Tensor, Tensor]:
        """Bool [N], the tokens that are sent to an expert, and their rows [N], 0 where a token is not."""
        chooses = self.chosen == expert
        return chooses.any(1), (self.row_of * chooses).sum(1)

    def product(self, x: Tensor, weight: Tensor) -> Tensor:
        """Rows x [S, I], each times the `weight` of its expert, of [E, O, I]: [S, O]; the weight gets no gradient."""
        return _Product.apply(x, weight, self)

    def multiplied(self, x: Tensor, weight: Tensor) -> Tensor:
        """As `product`, without a gradient."""
        if _has_kernel(x, weight):
            return torch.nn.functional.grouped_mm(x.contiguous(), weight.mT, offs=self.ends.int())
        y = x.new_empty(len(x) + 1, weight.shape[1])  # the last row takes what is too much in a tile
        for expert, rows in self._tiles:
            of_expert = weight[expert].reshape(weight.shape[1:]).to(x.dtype)
            inputs = x[rows.clamp_max(len(x) - 1)]
            y.index_copy_(0, rows, torch.nn.functional.linear(inputs, of_expert))
        return y[:-1]

    @cached_property
    def _tiles(self) -> Sequence[tuple[int | Tensor, Tensor]]:
        """An expert and M of its rows each, S in place of a row where it has no more.

        With M = S / E rows the first tiles of all experts have S rows together, and the further ones at most S: no more
        than twice the work, however tokens are spread. Which experts need further tiles is known to the device, so
        weights are copied for these alone. Where no tile can be full, there are none.
        """
        (n_tokens, n_rows), n_experts = (len(self.chosen), len(self.tokens)), len(self.ends)
        size = min(n_tokens, max(_LEAST_ROWS, -(-n_rows // n_experts)))
        further = torch.arange(0 if size == n_tokens else n_rows // size, device=self.ends.device)
        counts = self.ends.diff(prepend=self.ends.new_zeros(1))
        starts = self.ends - counts
        needed = (counts - 1).clamp_min(0) // size  # further tiles of each expert
        needed_until = needed.cumsum(0)
        expert = torch.searchsorted(needed_until, further, right=True).clamp_max(n_experts - 1)
        number = further - (needed_until - needed)[expert] + 1  # of a tile among its expert's
        first_rows = torch.cat([starts, starts[expert] + number * size])
        last_rows = torch.cat([self.ends, self.ends[expert]])[:, None]
        rows = first_rows[:, None] + torch.arange(size, device=self.ends.device)
        rows = rows.masked_fill(rows >= last_rows, n_rows)
        return list(zip([*range(n_experts), *expert[:, None].unbind()], rows.unbind(), strict=True))


class _Product(Function):
    """`ExpertRows.product`: autograd would keep the copied weights."""

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
    """True where torch multiplies groups of rows on the device: bfloat16 on GPUs of compute capability 9 and 10.

    For other types and GPUs `grouped_mm` copies the ends of the groups to the host (torch's GroupedBlas.cpp).
    """
    if not x.is_cuda or x.dtype != torch.bfloat16 or weight.dtype != torch.bfloat16:
        return False
    aligned = all(size % 8 == 0 for size in weight.shape[1:])  # 16 bytes
    return aligned and torch.cuda.get_device_capability(x.device)[0] in (9, 10)
