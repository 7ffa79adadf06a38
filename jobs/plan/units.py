"""Cutting samples into units of work, the same way every time.

A unit becomes one shard of every cell it serves. Its samples, their order and the cuts into batches depend on the
samples and the budgets alone, so a unit computed again, on any worker, gives the same bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evaluation.benchmark.forgotten import FORGOTTEN
from jobs.plan.inputs import Inputs
from jobs.plan.node import Node, Part

FORWARD_FACTOR = 8  # how many times the tokens of attribution fit into a forward without gradients
FEW = 3  # rows that may each fail on their own account, however few there are
LABELS_PASS = "(labels)"  # behind the name of a pass in measurements, where it explained every label
NO_FOIL = "no_foil"  # why a row is rejected that has nothing to contrast with: the data's doing, no failure
NO_RELEVANCE = "no_relevance"  # why a sample has no curve of a method that rejected it
NO_ABLATIONS = "no_ablations"  # why a sample has no relevance of units: its ablations were rejected
NOTHING_TO_FLIP = "nothing_to_flip"  # why a sample has no curve none of whose tokens may go
UNASKED = frozenset(
    {NO_FOIL, NO_RELEVANCE, NO_ABLATIONS, NOTHING_TO_FLIP, FORGOTTEN}
)  # reasons that are of the data, not failures


@dataclass(frozen=True, eq=False, slots=True)
class Unit:
    """The share of some nodes that a worker computes and commits at once.

    `rows` are indices into the views of a task, or the rows themselves. `cuts` are the starts of batches. `parts` are
    the shards that it becomes; None: one of every node that shares the unit, which has the unit's name.
    """

    name: str
    parts: tuple[Part, ...] | None = None
    rows: np.ndarray | Sequence[Mapping[str, Any]] = ()
    cuts: tuple[int, ...] = (0,)
    tokens: int = 0  # of the samples without padding, or of the forwards, roughly
    token_budget: int = 0  # of one forward
    size: int | None = None  # of its progress; None: the number of its rows

    @property
    def progress(self) -> int:
        """The count of its report."""
        return len(self.rows) if self.size is None else self.size

    def parts_of(self, nodes: Sequence[Node]) -> tuple[Part, ...]:
        """The parts, of the nodes that share the unit."""
        return tuple(Part(node, self.name) for node in nodes) if self.parts is None else self.parts


def cut_units(inputs: Inputs, rows: Iterable[int], token_budget: int, shard_rows: int) -> list[Unit]:
    """Longest samples first, whole batches, about `shard_rows` samples a unit.

    Many models ask for the same: a cut is made once.
    """
    numbers = rows if isinstance(rows, np.ndarray) else np.fromiter(rows, np.int64)
    asked = hashlib.sha256(np.ascontiguousarray(numbers).data).hexdigest(), token_budget, shard_rows
    if asked not in inputs.cuts:
        inputs.cuts[asked] = _cut_units(inputs, numbers, token_budget, shard_rows)
    return inputs.cuts[asked]


def _cut_units(inputs: Inputs, rows: np.ndarray, token_budget: int, shard_rows: int) -> list[Unit]:
    """As `cut_units`: samples with a foil first, the longest first, by id where equal.

    Whole batches, up to `shard_rows` samples unless a batch has more.
    """
    foilless = inputs.table["foil_id"].is_null().to_numpy()  # a batch has foils for all samples or for none
    takes_all = np.array_equal(rows, np.arange(len(inputs.ids)))
    ids = inputs.ids if takes_all else inputs.ids.take(rows)  # no copy of millions of ids where all are taken
    keys = {"foilless": foilless[rows], "minus_length": -inputs.lengths[rows], "id": ids}
    sorted_by = [(name, "ascending") for name in keys]
    order = rows[pc.sort_indices(pa.table(keys), sort_keys=sorted_by).to_numpy()]
    units: list[Unit] = []
    pending: list[np.ndarray] = []
    for batch in _batches(order, inputs.lengths[order], foilless[order], token_budget):
        if pending and sum(map(len, pending)) + len(batch) > shard_rows:
            units.append(_unit(len(units), pending, inputs, inputs.lengths))
            pending = []
        pending.append(batch)
    if pending:
        units.append(_unit(len(units), pending, inputs, inputs.lengths))
    return units


def cut_by_tokens(inputs: Inputs, rows: Iterable[int], tokens: np.ndarray, unit_tokens: int) -> list[Unit]:
    """Longest samples first, as many as make `unit_tokens` of the `tokens` [N] that each costs, at least one."""
    ids = inputs.ids.to_pylist()
    units: list[Unit] = []
    pending: list[int] = []
    for row in sorted(rows, key=lambda i: (-int(inputs.lengths[i]), ids[i])):
        if pending and tokens[pending].sum() + tokens[row] > unit_tokens:
            units.append(_unit(len(units), [np.array(pending)], inputs, tokens))
            pending = []
        pending.append(row)
    if pending:
        units.append(_unit(len(units), [np.array(pending)], inputs, tokens))
    return units


def _batches(order: np.ndarray, lengths: np.ndarray, foilless: np.ndarray, token_budget: int) -> Iterator[np.ndarray]:
    """Runs of `order` [N] whose padded size, longest times count, stays within the budget; at least one sample each.

    `lengths` and `foilless` are those of `order`, in which the longest come first, and all with a foil before.
    """
    with_foil = int((~foilless).sum())
    start = 0
    while start < len(order):
        end = start + max(1, token_budget // int(lengths[start]))
        if start < with_foil:
            end = min(end, with_foil)
        yield order[start:end]
        start = min(end, len(order))


def _unit(index: int, batches: list[np.ndarray], inputs: Inputs, lengths: np.ndarray) -> Unit:
    """A unit of the batches, each the rows of its samples; `lengths` [N] is what every sample costs."""
    rows = np.concatenate(batches).astype(np.int32)
    starts = np.cumsum([0, *map(len, batches[:-1])])
    cuts = tuple(int(start) for start in starts)
    content = "\n".join([*inputs.ids.take(rows).to_pylist(), repr(cuts)])
    digest = hashlib.sha256(content.encode()).hexdigest()[:8]
    return Unit(f"{index:05d}-{digest}", rows=rows, cuts=cuts, tokens=int(lengths[rows].sum()))
