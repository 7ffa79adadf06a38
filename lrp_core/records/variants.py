"""Variants of the samples of a batch (such as a token removed), run as rows of forwards that fit a token budget.

The budget bounds memory. It changes numbers by rounding only, since rows of a batch do not see each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from closelook.lrp_core.device.progress import tell
from closelook.lrp_core.device.transfer import to_device
from closelook.lrp_core.records.types import Batch

TOKEN_BUDGET = 4096  # the most tokens of one forward, padding included; a longer row is run alone


def rows_of(batch: Batch, rows: Tensor) -> Batch:
    """A batch of the samples with the indices `rows` [R], which may repeat."""
    rows = to_device(rows, batch.input_ids.device)
    return batch.mapped(lambda value: value[rows])


def tiled(batch: Batch, times: int) -> Batch:
    """The batch repeated `times` times, one copy after the other: [times * B, ...]."""
    return rows_of(batch, torch.arange(len(batch), device=batch.input_ids.device).repeat(times))


def scaled(batch: Batch, factors: Tensor) -> Batch:
    """The batch with embeddings of tokens multiplied by `factors`, laid out like `Batch.every_id`."""
    of_text, of_decoder = factors.tensor_split([batch.input_ids.shape[1]], 1)
    return replace(batch, factors=of_text, decoder_factors=of_decoder if of_decoder.shape[1] else None)


def unpadded(batch: Batch, i: int) -> Batch:
    """Sample `i` of a batch as a batch of its own, without padding and other masked tokens.

    The batch is on the CPU: on a GPU, indexing by a mask would wait for the device.
    """
    sample = batch.rows(i, i + 1)
    kept = attended = batch.attention_mask[i].bool()
    if sample.decoder_input_ids is not None and sample.decoder_attention_mask is not None:
        attended = sample.decoder_attention_mask[0].bool()  # readout positions belong to the decoder if there is one
        prefix = sample.decoder_input_ids[:, attended]
        sample = replace(sample, decoder_input_ids=prefix, decoder_attention_mask=torch.ones_like(prefix))
    before = attended.cumsum(0) - attended.long()  # [T] new positions; the mask may hide tokens inside the sample, too
    return sample.over_tokens(lambda of_tokens: of_tokens[:, kept], lambda positions: before[positions])


def pieces(variants: range, tokens: int, token_budget: int) -> Iterator[range]:
    """Yield consecutive ranges of `variants` of `tokens` tokens each, as long as the budget allows; report progress."""
    size = max(1, token_budget // max(1, tokens))
    for start in range(0, len(variants), size):
        yield variants[start : start + size]
        tell(min(start + size, len(variants)), len(variants))
