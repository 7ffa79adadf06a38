"""Cutting samples into units of work, the same way every time.

A unit becomes one shard of every cell it serves. Its samples, their order and the cuts into batches depend on the
samples and the budgets alone, so a unit computed again, on any worker, gives the same bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from jobs.plan.inputs import Inputs

FORWARD_FACTOR = 8  # how many times the tokens of attribution fit into a forward without gradients
FEW = 3  # rows that may each fail on their own account, however few there are
NO_FOIL = "no_foil"  # why a row is rejected that has nothing to contrast with: the data's doing, no failure
NO_RELEVANCE = "no_relevance"  # why a sample has no curve of a method that rejected it
NOTHING_TO_FLIP = "nothing_to_flip"  # why a sample has no curve none of whose tokens may go
UNASKED = frozenset({NO_FOIL, NO_RELEVANCE, NOTHING_TO_FLIP})  # reasons that are of the data, not failures


@dataclass(frozen=True)
class Unit:
    """Samples that are committed together. `rows` are indices into the views; `cuts` are batch starts within `rows`."""

    name: str
    rows: tuple[int, ...]
    cuts: tuple[int, ...]
    tokens: int  # that its samples cost, without padding


def cut_units(inputs: Inputs, rows: Iterable[int], token_budget: int, shard_rows: int) -> list[Unit]:
    """Longest samples first, whole batches, about `shard_rows` samples a unit."""
    ids = inputs.table["sample_id"].to_pylist()
    foilless = inputs.table["foil_id"].is_null().to_pylist()  # a batch has foils for all samples or for none
    order = sorted(rows, key=lambda i: (foilless[i], -int(inputs.lengths[i]), ids[i]))
    units: list[Unit] = []
    pending: list[list[int]] = []
    for batch in _batches(order, inputs.lengths, foilless, token_budget):
        if pending and sum(map(len, pending)) + len(batch) > shard_rows:
            units.append(_unit(len(units), pending, ids, inputs.lengths))
            pending = []
        pending.append(batch)
    if pending:
        units.append(_unit(len(units), pending, ids, inputs.lengths))
    return units


def cut_by_tokens(inputs: Inputs, rows: Iterable[int], tokens: np.ndarray, unit_tokens: int) -> list[Unit]:
    """Longest samples first, as many as make `unit_tokens` of the `tokens` [N] that each costs, at least one."""
    ids = inputs.table["sample_id"].to_pylist()
    units: list[Unit] = []
    pending: list[int] = []
    for row in sorted(rows, key=lambda i: (-int(inputs.lengths[i]), ids[i])):
        if pending and tokens[pending].sum() + tokens[row] > unit_tokens:
            units.append(_unit(len(units), [pending], ids, tokens))
            pending = []
        pending.append(row)
    if pending:
        units.append(_unit(len(units), [pending], ids, tokens))
    return units


def _batches(order: list[int], lengths: np.ndarray, foilless: list[bool], token_budget: int) -> Iterator[list[int]]:
    """Runs of `order` whose padded size, longest times count, stays within the budget; at least one sample each."""
    batch: list[int] = []
    for row in order:
        full = bool(batch) and (len(batch) + 1) * int(lengths[batch[0]]) > token_budget
        if batch and (full or foilless[row] != foilless[batch[0]]):
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def _unit(index: int, batches: list[list[int]], ids: list[str], lengths: np.ndarray) -> Unit:
    rows = tuple(int(row) for batch in batches for row in batch)
    starts = np.cumsum([0, *map(len, batches[:-1])])
    cuts = tuple(int(start) for start in starts)
    content = "\n".join([*(ids[row] for row in rows), repr(cuts)])
    digest = hashlib.sha256(content.encode()).hexdigest()[:8]
    return Unit(f"{index:05d}-{digest}", rows, cuts, int(lengths[list(rows)].sum()))
