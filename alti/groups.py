"""Groups of samples from a batch, without the padding that other samples need; results are put back into the batch."""

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
    rows: Tensor  # [b], the samples' rows in the whole batch
    columns: Tensor  # [b, t], the column of each token in the whole batch
    real: Tensor  # [b, t], 1 for tokens, 0 for padding

    @classmethod
    def of(cls, whole: Batch, rows: list[int]) -> Group:
        """The group of these rows of a batch, which is on the CPU, since a GPU would have to be waited for."""
        picked = torch.tensor(rows)
        mask = whole.attention_mask[picked]
        length = lengths(whole)[picked]
        offset = torch.arange(int(length.max()))
        # sorted stably by the mask, tokens come first, in their order
        columns = mask.argsort(dim=-1, descending=True, stable=True)[:, : len(offset)]
        slots = (mask.cumsum(-1) - 1).clamp_min(0)  # [b, T], the new column of each token
        chosen = rows_of(whole, picked)
        batch = chosen.over_tokens(lambda of_tokens: of_tokens.gather(1, columns), lambda at: slots.gather(1, at))
        batch = replace(batch, attention_mask=(offset < length[:, None]).to(mask.dtype))
        return cls(batch, picked, columns, mask.gather(1, columns))

    def to(self, device: torch.device) -> Group:
        """The group with all its tensors on a device."""
        places = (to_device(of_tokens, device) for of_tokens in (self.rows, self.columns, self.real))
        return Group(self.batch.to(device), *places)

    def halves(self) -> list[Group]:
        """Two groups with half of the samples each."""
        middle = len(self.batch) // 2
        return [self._some(slice(None, middle)), self._some(slice(middle, None))]

    def put(self, numbers: Tensor, whole: Tensor, over_tokens: bool) -> None:
        """Write the group's `numbers` [b, ...] into the rows of `whole` [B, ...] from which its samples were taken.

        With `over_tokens` the last axis is tokens, t of `numbers` and T of `whole`: each number goes to the column of
        its token, and all other columns of these rows become 0.
        """
        if not over_tokens:
            whole[self.rows] = numbers
            return
        between = [1] * (numbers.dim() - 2)
        columns = self.columns.view(len(self.rows), *between, -1).expand_as(numbers)
        real = self.real.view(len(self.rows), *between, -1)
        whole[self.rows] = torch.zeros_like(whole[self.rows]).scatter_add_(-1, columns, numbers * real)

    def _some(self, rows: slice) -> Group:
        """The group of some of its samples."""
        batch = self.batch.mapped(lambda value: value[rows])
        return Group(batch, self.rows[rows], self.columns[rows], self.real[rows])


def lengths(batch: Batch) -> Tensor:
    """The number of tokens of each sample [B], without masked ones; 1 for a row that is all padding."""
    return batch.attention_mask.sum(-1).clamp_min(1)
