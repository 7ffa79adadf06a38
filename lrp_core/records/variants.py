"""Many variants of the samples of a batch as rows of one forward, as many at a time as a token budget allows.

The budget bounds memory. It changes no number beyond rounding: rows do not see each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from lrp_core.device.progress import tell
from lrp_core.device.transfer import to_device
from lrp_core.records.types import Batch

TOKEN_BUDGET = 4096  # tokens of one forward, padding included; at least one row is run


def rows_of(batch: Batch, rows: Tensor) -> Batch:
    """A batch of the samples with these indices [R], which may repeat."""
    rows = to_device(rows, batch.input_ids.device)
    return batch.mapped(lambda value: value[rows])


def tiled(batch: Batch, times: int) -> Batch:
    """The whole batch `times` over, [times * B]."""
    return rows_of(batch, torch.arange(len(batch), device=batch.input_ids.device).repeat(times))


def unpadded(batch: Batch, i: int) -> Batch:
    """Sample `i` alone, of a batch on the CPU: on a device each mask would be waited for."""
    sample = batch.rows(i, i + 1)
    mask = read = batch.attention_mask[i].bool()
    if sample.decoder_input_ids is not None and sample.decoder_attention_mask is not None:
        read = sample.decoder_attention_mask[0].bool()
        prefix = sample.decoder_input_ids[:, read]
        sample = replace(sample, decoder_input_ids=prefix, decoder_attention_mask=torch.ones_like(prefix))
    before = read.cumsum(0) - read.long()  # [T], the mask may hide tokens inside the sample, too
    return sample.over_tokens(lambda of_tokens: of_tokens[:, mask], lambda positions: before[positions])


def pieces(variants: range, tokens: int, token_budget: int) -> Iterator[range]:
    """Runs of `variants` of `tokens` tokens each that fit the budget together; who watches is told of each."""
    size = max(1, token_budget // max(1, tokens))
    for start in range(0, len(variants), size):
        yield variants[start : start + size]
        tell(min(start + size, len(variants)), len(variants))
