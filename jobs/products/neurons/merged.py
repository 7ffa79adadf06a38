"""The activity of neurons over a corpus, merged from the parts that units of texts commit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evaluation.schema import CONTEXTS
from lrp_core.neurons.near_ties import SPARE, near_ties, runs

NOWHERE = np.iinfo(np.int64).max  # stands for no context, where a neuron has fewer than are kept
UNIT = 1 << 32  # number of a context = number of its unit * UNIT + its number within the unit


@dataclass
class Merged:
    """For N neurons, the K contexts where each is most active, and its activity over all texts."""

    layer: np.ndarray  # [N]
    neuron: np.ndarray  # [N]
    activation: np.ndarray  # [N, K], descending; -inf where there is no context
    context: np.ndarray  # [N, K] numbers of contexts, or NOWHERE
    position: np.ndarray  # [N, K] of the activation, within the context
    total: np.ndarray  # [N] sums of activations
    histogram: np.ndarray  # [N, bins] of activations
    not_finite: np.ndarray  # [N] how many activations were not finite

    @classmethod
    def part(cls, table: pa.Table, unit: int, top: int) -> Merged:
        """The activity in the committed part of a `unit`: for each neuron, `top` contexts and SPARE more."""
        activation = _padded(table["activation"], top + SPARE, -np.inf)
        context = _padded(table["context"], top + SPARE, -1)
        position = _padded(table["position"], top + SPARE, 0)
        context = np.where(context < 0, NOWHERE, context + unit * UNIT)
        layer, neuron, total, not_finite = (
            table[name].to_numpy() for name in ("layer", "neuron", "total", "not_finite")
        )
        bins = table["histogram"].combine_chunks()
        histogram = bins.flatten().to_numpy().reshape(len(table), -1)
        return cls(layer, neuron, activation, context, position, total, histogram, not_finite)

    def add(self, other: Merged) -> None:
        """Merge with `other`: add counts, and keep the largest activations; of equal ones the earlier context's."""
        activation = np.concatenate([self.activation, other.activation], 1)
        context = np.concatenate([self.context, other.context], 1)
        position = np.concatenate([self.position, other.position], 1)
        self._keep(self.activation.shape[1], activation, context, position)
        self.total = self.total + other.total
        self.histogram = self.histogram + other.histogram
        self.not_finite = self.not_finite + other.not_finite

    def near_ties(self, top: int) -> pa.Table:
        """A table of the contexts (layer, neuron, context) whose rank may be due to rounding alone.

        These are near ties, in a run of nearly equal activations that begins among the first `top`.
        """
        tied = near_ties(self.activation, top)
        rows, _ = tied.nonzero()
        return pa.table({"layer": self.layer[rows], "neuron": self.neuron[rows], "context": self.context[tied]})

    def settle_near_ties(self, top: int, recomputed: pa.Table) -> None:
        """Keep the first `top` contexts.

        `recomputed` (schema CONTEXTS_TIES) has the activations of near ties, each from a forward pass over that context
        alone; they replace the batched ones. Activations that still differ by rounding only, as of two contexts that
        begin alike, rank by the order of the corpus: processors round differently, even for a context alone.
        """
        layer, neuron, context = (recomputed[name].to_numpy() for name in ("layer", "neuron", "context"))
        rows = np.searchsorted(_numbers(self.layer, self.neuron), _numbers(layer, neuron))
        entry, at = (self.context[rows] == context[:, None]).nonzero()  # a part computed again may keep other contexts
        self.activation[rows[entry], at] = recomputed["activation"].to_numpy()[entry]
        self.position[rows[entry], at] = recomputed["position"].to_numpy()[entry]
        # sort again by the new activations
        self._keep(self.activation.shape[1], self.activation, self.context, self.position)
        order = np.lexsort((self.context, runs(self.activation)), axis=1)[:, :top]
        self._take(order, self.activation, self.context, self.position)

    def _keep(self, top: int, activation: np.ndarray, context: np.ndarray, position: np.ndarray) -> None:
        """Keep the first `top` of these contexts [N, K], in descending order of activation."""
        order = np.lexsort((context, -activation), axis=1)[:, :top]
        self._take(order, activation, context, position)

    def _take(self, order: np.ndarray, *fields: np.ndarray) -> None:
        """Set activations, contexts and positions to the entries of `fields` at the column indices `order` [N, top]."""
        self.activation, self.context, self.position = (np.take_along_axis(of, order, 1) for of in fields)

    def of(self, rows: np.ndarray) -> Merged:
        """The neurons that a mask [N] selects."""
        return Merged(*(field[rows] for field in vars(self).values()))

    def activations(self) -> pa.Table:
        """A row for each neuron, in schema ACTIVATIONS.

        It has the number of tokens, their mean activation (null without any) and its histogram.
        """
        tokens = self.histogram.sum(1)
        means = pa.array(self.total / np.maximum(tokens, 1), mask=tokens == 0)
        offsets = np.arange(len(tokens) + 1) * self.histogram.shape[1]
        counts = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(self.histogram.ravel()))
        columns = {"layer": self.layer, "neuron": self.neuron, "tokens": tokens, "not_finite": self.not_finite}
        return pa.table(columns | {"mean": means, "histogram": counts})

    def contexts(self, texts: pa.Table) -> pa.Table:
        """A row for each neuron and rank, in schema CONTEXTS. `texts` has the contexts, in ascending order of `key`."""
        is_kept = self.context != NOWHERE
        rows, ranks = is_kept.nonzero()
        indices = np.searchsorted(texts["key"].to_numpy(), self.context[is_kept])
        columns = {"layer": self.layer[rows], "neuron": self.neuron[rows], "rank": ranks + 1}
        columns |= {"activation": self.activation[is_kept], "position": self.position[is_kept]}
        named = texts.take(pa.array(indices))
        return pa.table(columns | {name: named[name] for name in CONTEXTS.names if name in texts.column_names})


def with_keys(texts: pa.Table, unit: int) -> pa.Table:
    """The rows of CONTEXTS_TEXTS of a unit, with `key`: the number of each context among those of all units."""
    keys = texts["context"].to_numpy().astype(np.int64) + unit * UNIT
    return texts.append_column("key", pa.array(keys))


def _numbers(layer: np.ndarray, neuron: np.ndarray) -> np.ndarray:
    """A number for each neuron [N] that orders them by layer, then by number."""
    return layer.astype(np.int64) * UNIT + neuron


def _padded(column: pa.ChunkedArray, top: int, fill: float) -> np.ndarray:
    """A column of lists of at most `top` numbers as an array [N, top], filled up with `fill`."""
    lists = column.combine_chunks()
    values = lists.flatten().to_numpy()
    kind = np.float64 if isinstance(fill, float) else np.int64
    whole = np.full((len(lists), top), fill, dtype=kind)
    is_entry = np.arange(top) < pc.list_value_length(lists).to_numpy()[:, None]
    whole[is_entry] = values
    return whole
