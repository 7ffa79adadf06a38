"""Reads prompts that begin with the same tokens, and reads these tokens only once.

Prompts are sorted and divided into batches of neighbours. The keys and values of the last row of a batch are kept, so
the next batch does not read the tokens again that it begins with too. If all rows of a batch have further first tokens
in common, these are read in a forward pass of one row, provided that this saves more time than the pass takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

from torch import Tensor
from transformers import DynamicCache

from closelook.lrp_core.device.precision import unrounded
from closelook.lrp_core.records.types import Batch
from closelook.lrp_core.views.view import ModelView

Prompt = tuple[int, ...]
_FORWARD_ON_CPU, _FORWARD = 64, 1024  # the cost of starting a forward pass, in tokens that are read in the same time


class Reading(NamedTuple):
    """A batch of the prompts from `start` to before `end`. All begin with the same `shared` tokens."""

    start: int
    end: int
    known: int  # the number of shared tokens that the prompt before `start` begins with too: they need no reading
    shared: int
    tokens: int  # the cost: tokens that are read, padding included, plus the cost of starting forward passes


def readings(prompts: Sequence[Prompt], answer: int, token_budget: int, device: str) -> list[Reading]:
    """The division of sorted prompts into batches that costs least.

    An answer of `answer` tokens follows each prompt. A batch with its answers fits the `token_budget`, padding
    included, or has a single row. `device` is the type of the device that reads.
    """
    forward = _FORWARD_ON_CPU if device == "cpu" else _FORWARD
    alike = [0, *map(_alike, prompts, prompts[1:])]  # for each prompt, how many tokens it shares with the one before
    least = [0]  # the lowest cost of the first 0, 1, 2, ... prompts
    last: list[Reading] = []  # for each prompt, the batch that ends with it in the best division up to it
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
    """Yield the possible batches that end with the last prompt, from the smallest on.

    Stops before a batch of several rows that exceeds `token_budget`, and after the first that costs more than its rows
    one by one. `alike` has for each prompt how many first tokens it shares with the one before. `said` is the number of
    tokens of the answer that are read, `forward` the cost of starting a pass, in tokens.
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
        tokens = rows * (longest + said - known) + forward  # all rows from `known` on
        apart = tokens - (rows - 1) * (shared - known) + forward  # the shared tokens first, in a pass of one row
        yield Reading(start, end, known, shared if apart < tokens else known, min(tokens, apart))
        if min(tokens, apart) > one_by_one:
            return
        shared = min(shared, alike[start])


def _alike(first: Prompt, other: Prompt) -> int:
    """The number of first tokens that two prompts have in common."""
    pairs = zip(first, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


@dataclass
class Kept:
    """The keys and values [1, G, T, K] of a row that was read, for each layer."""

    layers: tuple[tuple[Tensor, Tensor], ...] = ()

    @classmethod
    def of_last_row(cls, cache: DynamicCache) -> Kept:
        """A copy of the keys and values of the last row of a batch, so that the other rows can be freed."""
        return cls(tuple((keys[-1:].clone(), values[-1:].clone()) for keys, values, *_ in cache))

    def cache(self, length: int, rows: int) -> DynamicCache:
        """A cache with the keys and values of the first `length` tokens, the same for each of `rows` rows."""
        if not length:
            return DynamicCache()
        layers = [tuple(part[:, :, :length].expand(rows, -1, -1, -1) for part in layer) for layer in self.layers]
        return DynamicCache(layers)


def read_on(view: ModelView, batch: Batch, known: int, cache: DynamicCache) -> Tensor:
    """The last hidden states of all tokens of the batch after the first `known`.

    The keys and values of the first `known` tokens are in the `cache`; those of the other tokens are added to it.
    """
    batch = batch.to(view.device)
    with unrounded(view.dtype):
        embedded = view.token_embedding(batch.input_ids[:, known:])
        positions = view.position_ids(batch)[:, known:]
        read = view.model.base_model(
            inputs_embeds=embedded,
            attention_mask=batch.attention_mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            return_dict=True,
        )
    states: Tensor = read.last_hidden_state
    return states
