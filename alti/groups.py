"""Samples taken out of a batch, without the padding that others need, and their numbers put back."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lrp_core.device.transfer import to_device
from lrp_core.records.types import Batch
from lrp_core.records.variants import rows_of


@dataclass(frozen=True)
class Group:
    """Some samples of a batch [B, T] without masked tokens, padded on the right to the longest of them [b, t]."""

    batch: Batch
    rows: Tensor  # [b], of the whole batch
    columns: Tensor  # [b, t], where each token stood
    real: Tensor  # [b, t], 0 where a number is of no token

    @classmethod
    def of(cls, whole: Batch, rows: list[int]) -> Group:
        """From a batch on the CPU: on a device lengths would be waited for."""
        picked = torch.tensor(rows)
        mask = whole.attention_mask[picked]
        length = lengths(whole)[picked]
        offset = torch.arange(int(length.max()))
        columns = mask.argsort(dim=-1, descending=True, stable=True)[:, : len(offset)]  # those that are seen come first
        slots = (mask.cumsum(-1) - 1).clamp_min(0)  # [b, T], where each token goes
        chosen = rows_of(whole, picked)
        batch = chosen.over_tokens(lambda of_tokens: of_tokens.gather(1, columns), lambda at: slots.gather(1, at))
        batch = replace(batch, attention_mask=(offset < length[:, None]).to(mask.dtype))
        return cls(batch, picked, columns, mask.gather(1, columns))

    def to(self, device: torch.device) -> Group:
        """The group on this device."""
        places = (to_device(of_tokens, device) for of_tokens in (self.rows, self.columns, self.real))
        return Group(self.batch.to(device), *places)

    def halves(self) -> list[Group]:
        """Two groups of half the samples each."""
        middle = len(self.batch) // 2
        return [self._some(slice(None, middle)), self._some(slice(middle, None))]

    def put(self, numbers: Tensor, whole: Tensor, over_tokens: bool) -> None:
        """Writes numbers [b, ...] to their places in `whole` [B, ...]; the last axis is t and T if `over_tokens`."""
        if not over_tokens:
            whole[self.rows] = numbers
            return
        between = [1] * (numbers.dim() - 2)
        columns = self.columns.view(len(self.rows), *between, -1).expand_as(numbers)
        real = self.real.view(len(self.rows), *between, -1)
        whole[self.rows] = torch.zeros_like(whole[self.rows]).scatter_add_(-1, columns, numbers * real)

    def _some(self, rows: slice) -> Group:
        batch = self.batch.mapped(lambda value: value[rows])
        return Group(batch, self.rows[rows], self.columns[rows], self.real[rows])


def lengths(batch: Batch) -> Tensor:
    """Tokens of each sample [B] that are seen. A row of padding alone counts as one token, whose numbers are zero."""
    return batch.attention_mask.sum(-1).clamp_min(1)
