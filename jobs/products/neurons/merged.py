"""The activity of neurons in a corpus, merged from the parts that units commit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evaluation.schema import CONTEXTS
from lrp_core.neurons.near_ties import SPARE, near_ties, runs

NOWHERE = np.iinfo(np.int64).max  # in place of a context where there are fewer than are kept
UNIT = 1 << 32  # a context's number is its unit's times this, and its own within the unit


@dataclass
class Merged:
    """The activity of neurons, a row each; N neurons, K contexts."""

    layer: np.ndarray  # [N]
    neuron: np.ndarray  # [N]
    activation: np.ndarray  # [N, K], -inf where there is no context
    context: np.ndarray  # [N, K]
    position: np.ndarray  # [N, K]
    total: np.ndarray  # [N]
    histogram: np.ndarray  # [N, bins]
    not_finite: np.ndarray  # [N] tokens

    @classmethod
    def part(cls, table: pa.Table, unit: int, top: int) -> Merged:
        """The activity in a committed part: the `top` contexts and SPARE more."""
        columns = (
            _padded(table[name], top + SPARE, fill)
            for name, fill in (("activation", -np.inf), ("context", -1), ("position", 0))
        )
        activation, context, position = columns
        context = np.where(context < 0, NOWHERE, context + unit * UNIT)
        layer, neuron, total, not_finite = (
            table[name].to_numpy() for name in ("layer", "neuron", "total", "not_finite")
        )
        bins = table["histogram"].combine_chunks()
        histogram = bins.flatten().to_numpy().reshape(len(table), -1)
        return cls(layer, neuron, activation, context, position, total, histogram, not_finite)

    def add(self, other: Merged) -> None:
        """The best of both; of equal activations the earlier context comes first."""
        pairs = ((self.activation, other.activation), (self.context, other.context), (self.position, other.position))
        self._keep(self.activation.shape[1], *(np.concatenate(pair, 1) for pair in pairs))
        self.total = self.total + other.total
        self.histogram = self.histogram + other.histogram
        self.not_finite = self.not_finite + other.not_finite

    def near_ties(self, top: int) -> pa.Table:
        """layer, neuron and context of all whose rank among the first `top` rounding may have decided."""
        tied = near_ties(self.activation, top)
        rows, _ = tied.nonzero()
        return pa.table({"layer": self.layer[rows], "neuron": self.neuron[rows], "context": self.context[tied]})

    def decide(self, top: int, alone: pa.Table) -> None:
        """Keep the first `top`, ranked by the activations in `alone`, of schema CONTEXTS_TIES, where it has any.

        What is still equal but for rounding, as of two contexts that begin alike, is ranked by context: processors
        round otherwise, even of a context alone.
        """
        layer, neuron, context = (alone[name].to_numpy() for name in ("layer", "neuron", "context"))
        rows = np.searchsorted(_numbers(self.layer, self.neuron), _numbers(layer, neuron))
        entry, at = (self.context[rows] == context[:, None]).nonzero()  # a part made anew may keep other contexts
        self.activation[rows[entry], at] = alone["activation"].to_numpy()[entry]
        self.position[rows[entry], at] = alone["position"].to_numpy()[entry]
        self._keep(self.activation.shape[1], self.activation, self.context, self.position)
        order = np.lexsort((self.context, runs(self.activation)), axis=1)[:, :top]
        self._take(order, self.activation, self.context, self.position)

    def _keep(self, top: int, activation: np.ndarray, context: np.ndarray, position: np.ndarray) -> None:
        """The first `top` of these [N, K]."""
        order = np.lexsort((context, -activation), axis=1)[:, :top]
        self._take(order, activation, context, position)

    def _take(self, order: np.ndarray, *fields: np.ndarray) -> None:
        """The entries of activations, contexts and positions at these places of each row."""
        self.activation, self.context, self.position = (np.take_along_axis(of, order, 1) for of in fields)

    def of(self, rows: np.ndarray) -> Merged:
        """The neurons that a mask [N] chooses."""
        return Merged(*(field[rows] for field in vars(self).values()))

    def activations(self) -> pa.Table:
        """The table of schema ACTIVATIONS."""
        tokens = self.histogram.sum(1)
        means = pa.array(self.total / np.maximum(tokens, 1), mask=tokens == 0)
        ends = np.arange(len(tokens) + 1) * self.histogram.shape[1]
        counts = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(self.histogram.ravel()))
        columns = {"layer": self.layer, "neuron": self.neuron, "tokens": tokens, "not_finite": self.not_finite}
        return pa.table(columns | {"mean": means, "histogram": counts})

    def contexts(self, texts: pa.Table) -> pa.Table:
        """The table of schema CONTEXTS; `texts` has the contexts by `key`, in ascending order."""
        is_kept = self.context != NOWHERE
        rows, ranks = is_kept.nonzero()
        indices = np.searchsorted(texts["key"].to_numpy(), self.context[is_kept])
        columns = {"layer": self.layer[rows], "neuron": self.neuron[rows], "rank": ranks + 1}
        columns |= {"activation": self.activation[is_kept], "position": self.position[is_kept]}
        named = texts.take(pa.array(indices))
        return pa.table(columns | {name: named[name] for name in CONTEXTS.names if name in texts.column_names})


def with_keys(texts: pa.Table, unit: int) -> pa.Table:
    """Rows of CONTEXTS_TEXTS with the number of each context among those of all units, as `key`."""
    keys = texts["context"].to_numpy().astype(np.int64) + unit * UNIT
    return texts.append_column("key", pa.array(keys))


def _numbers(layer: np.ndarray, neuron: np.ndarray) -> np.ndarray:
    """[N] by layer, then by neuron."""
    return layer.astype(np.int64) * UNIT + neuron


def _padded(column: pa.ChunkedArray, top: int, fill: float) -> np.ndarray:
    """Lists of at most `top` numbers as rows [N, top]."""
    lists = column.combine_chunks()
    values = lists.flatten().to_numpy()
    kind = np.float64 if isinstance(fill, float) else np.int64
    whole = np.full((len(lists), top), fill, dtype=kind)
    is_entry = np.arange(top) < pc.list_value_length(lists).to_numpy()[:, None]
    whole[is_entry] = values
    return whole
