"""Samples taken out of a batch, without the padding that others need, and their numbers put back."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lrp_core.types import Batch


@dataclass(frozen=True)
class Group:
    """Some samples of a batch [B, T], padded on the right to the longest of them [b, t]."""

    batch: Batch
    rows: Tensor  # [b], of the whole batch
    columns: Tensor  # [b, t], where each token stood

    @classmethod
    def of(cls, whole: Batch, rows: list[int]) -> Group:
        picked = torch.tensor(rows, device=whole.input_ids.device)
        mask = whole.attention_mask[picked]
        start, length = mask.argmax(-1), mask.sum(-1)  # real tokens are contiguous
        offset = torch.arange(int(length.max()), device=mask.device)
        columns = (start[:, None] + offset).clamp_max(mask.shape[-1] - 1)
        return cls(
            batch=Batch(
                input_ids=whole.input_ids[picked].gather(1, columns),
                attention_mask=(offset < length[:, None]).to(mask.dtype),
                position=whole.position[picked] - start,
                target_ids=whole.target_ids[picked],
                foil_ids=None if whole.foil_ids is None else whole.foil_ids[picked],
            ),
            rows=picked,
            columns=columns,
        )

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
        real = self.batch.attention_mask.view(len(self.rows), *between, -1)
        whole[self.rows] = torch.zeros_like(whole[self.rows]).scatter_add_(-1, columns, numbers * real)

    def _some(self, rows: slice) -> Group:
        parts = {name: value[rows] for name, value in vars(self.batch).items() if value is not None}
        return Group(replace(self.batch, **parts), self.rows[rows], self.columns[rows])
