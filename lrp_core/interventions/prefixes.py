"""Prompts that begin alike: their common tokens are read once, and the others from their keys and values.

Sorted prompts are cut into batches of neighbours. A batch goes on from the last row of the batch before it, whose keys
and values are kept; what its own rows begin with alike beyond that is read once for all of them where that saves more
than a forward costs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

from torch import Tensor
from transformers import DynamicCache

from lrp_core.device.precision import unrounded
from lrp_core.records.types import Batch
from lrp_core.views.view import ModelView

Prompt = tuple[int, ...]
_FORWARD_ON_CPU, _FORWARD = 64, 1024  # tokens that take about as long to read as a forward takes to begin


class Reading(NamedTuple):
    """A batch of the prompts `start` to `end`, which all begin with the same `shared` tokens."""

    start: int
    end: int
    known: int  # of the shared tokens, those that the prompt before `start` begins with, too
    shared: int
    tokens: int  # that are read, padding included, and those that a forward is worth


def readings(prompts: Sequence[Prompt], answer: int, token_budget: int, device: str) -> list[Reading]:
    """The batches of sorted prompts that together read the fewest tokens; an answer of so many follows each.

    Prompts and answers of a batch fit the `token_budget`, padding included, or are a single row. `device` is the type
    of the device that reads them.
    """
    forward = _FORWARD_ON_CPU if device == "cpu" else _FORWARD
    alike = [0, *map(_alike, prompts, prompts[1:])]  # with the prompt before
    least = [0]
    last: list[Reading] = []  # of the best batches up to each prompt
    for end in range(1, len(prompts) + 1):
        ending = _ending(prompts[:end], alike, answer - 1, token_budget, forward)
        cost, reading = min((least[reading.start] + reading.tokens, reading) for reading in ending)
        least.append(cost)
        last.append(reading)
    chosen: list[Reading] = []
    at = len(prompts)
    while at:
        chosen.append(last[at - 1])
        at = chosen[-1].start
    return chosen[::-1]


def _ending(
    prompts: Sequence[Prompt], alike: Sequence[int], said: int, token_budget: int, forward: int
) -> Iterator[Reading]:
    """The batches that end with the last of the prompts, the smallest first, while they read no more than single rows.

    `said` are the tokens of the answer that are read.
    """
    end = len(prompts)
    longest, shared, one_by_one = 0, len(prompts[-1]) - 1, 0
    for start in range(end - 1, -1, -1):
        length, rows = len(prompts[start]), end - start
        longest, shared = max(longest, length), min(shared, length - 1)  # the answer is read from the last token on
        known = min(alike[start], shared)
        if rows > 1 and rows * (longest + said) > token_budget:
            return
        one_by_one += length - min(alike[start], length - 1) + said + forward
        tokens = rows * (longest + said - known) + forward
        apart = tokens - (rows - 1) * (shared - known) + forward
        yield Reading(start, end, known, shared if apart < tokens else known, min(tokens, apart))
        if min(tokens, apart) > one_by_one:
            return
        shared = min(shared, alike[start])


def _alike(first: Prompt, other: Prompt) -> int:
    """The number of tokens that both begin with."""
    pairs = zip(first, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


@dataclass
class Kept:
    """The keys and values [1, G, T, K] of each layer, of a row that was read."""

    layers: tuple[tuple[Tensor, Tensor], ...] = ()

    @classmethod
    def of_last_row(cls, cache: DynamicCache) -> Kept:
        """Those of the last row of a batch, as a copy: the others need not be kept."""
        return cls(tuple((keys[-1:].clone(), values[-1:].clone()) for keys, values, *_ in cache))

    def cache(self, length: int, rows: int) -> DynamicCache:
        """The cache of the first `length` tokens, for so many rows."""
        if not length:
            return DynamicCache()
        return DynamicCache(
            [tuple(part[:, :, :length].expand(rows, -1, -1, -1) for part in layer) for layer in self.layers]
        )


def read_on(view: ModelView, batch: Batch, known: int, cache: DynamicCache) -> Tensor:
    """Last hidden states of the tokens behind the first `known`, which are in the `cache`; it grows by the others."""
    batch = batch.to(view.device)
    with unrounded(view.dtype):
        states: Tensor = view.model.base_model(
            inputs_embeds=view.token_embedding(batch.input_ids[:, known:]),
            attention_mask=batch.attention_mask,
            position_ids=view.position_ids(batch)[:, known:],
            past_key_values=cache,
            use_cache=True,
            return_dict=True,
        ).last_hidden_state
    return states
