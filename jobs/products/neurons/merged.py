"""The activity of neurons over a corpus: a worker records that of a unit of texts, and the driver merges all units."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from closelook.evaluation.benchmark.corpus import Corpus, batches, pieces_of, template_of, units
from closelook.evaluation.schema import CONTEXTS, CONTEXTS_TEXTS
from closelook.jobs.products.record import Opened, Row
from closelook.jobs.tasks import sources

if TYPE_CHECKING:
    from closelook.jobs.plan.units import Unit
    from closelook.lrp_core import ModelView
    from closelook.lrp_core.neurons.activity import Activity

NOWHERE = np.iinfo(np.int64).max  # stands for no context, where a neuron has fewer than are kept
UNIT = 1 << 32  # number of a context = number of its unit * UNIT + its number within the unit
_CHARACTERS_A_TOKEN = 4  # a guess, for the progress


def part_name(unit: int) -> str:
    """The name of the part that a unit of texts becomes."""
    return f"part-{unit:06d}"


@dataclass(frozen=True)
class CorpusReader:
    """Reads a corpus from start to end, and gives each unit its texts as rows."""

    corpus: Corpus
    characters: int  # of a unit

    def __call__(self, every: Sequence[Unit]) -> Iterator[Unit]:
        """Yield the units with their texts as rows."""
        sources()  # enters sources of installed packages in the table
        by_name = {unit.name: unit for unit in every}
        for number, entries in enumerate(units(self.corpus, self.characters)):
            unit = by_name.get(part_name(number))
            if unit is not None:
                characters = sum(len(entry.text) for entry in entries)
                rows = [{"sample_id": entry.where, "entry": entry} for entry in entries]
                yield replace(unit, rows=rows, size=len(rows), tokens=characters // _CHARACTERS_A_TOKEN)


def read(opened: Opened, rows: Sequence[Row], length: int, top: int, token_budget: int) -> tuple[pa.Table, pa.Table]:
    """The activity of neurons in the texts of `rows`, and the contexts into which these are cut.

    Returns a table of schema CONTEXTS_PART, with `top` contexts for each neuron, and a table of schema CONTEXTS_TEXTS,
    whose contexts have at most `length` tokens. Batches depend only on the rows and the budget.
    """
    from closelook.lrp_core.neurons.activity import Activity

    view, tokenizer = opened.view, opened.tokenizer
    entries = [row["entry"] for row in rows]
    pieces = list(pieces_of(tokenizer, entries, min(length, view.max_length)))
    activity = Activity(view, min(top, max(1, len(pieces))), template_of(tokenizer))
    for part in batches([len(piece.ids) for piece in pieces], token_budget):
        activity.add([pieces[at].ids for at in part], part)
    texts = len({piece.entry.number for piece in pieces})
    facts = {"contexts": len(pieces), "tokens": activity.tokens, "without_tokens": len(entries) - texts}
    neurons, named = _neurons(view, activity, facts)
    return neurons, pa.Table.from_pylist([pieces[at].row(at) for at in named], schema=CONTEXTS_TEXTS)


def _neurons(view: ModelView, activity: Activity, facts: dict[str, int]) -> tuple[pa.Table, list[int]]:
    """A row for each neuron, and the numbers of the contexts in these rows, ascending; `facts` are further columns."""
    from closelook.lrp_core.neurons.activity import NONE

    named: set[int] = set()
    tables = []
    for layer in range(view.n_layers):
        arrays = {name: tensor.cpu().numpy() for name, tensor in vars(activity.layer(layer)).items()}
        contexts, histogram, neurons = arrays["contexts"], arrays["histogram"], len(arrays["total"])
        is_kept = contexts != NONE
        named.update(np.unique(contexts[is_kept]).tolist())
        columns = {name: np.full(neurons, fact) for name, fact in {"layer": layer, **facts}.items()}
        columns |= {"neuron": np.arange(neurons), "total": arrays["total"], "not_finite": arrays["not_finite"]}
        columns |= {"activation": _lists(arrays["values"], is_kept), "context": _lists(contexts, is_kept)}
        columns["position"] = _lists(arrays["positions"], is_kept)
        columns["histogram"] = _lists(histogram, np.ones(histogram.shape, dtype=bool))
        tables.append(pa.table(columns))
    return pa.concat_tables(tables), sorted(named)


def _lists(values: np.ndarray, is_kept: np.ndarray) -> pa.Array:
    """The rows of `values` [N, K] as lists of those entries for which `is_kept` [N, K] is True."""
    ends = np.concatenate([[0], is_kept.sum(1).cumsum()])
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(values[is_kept]))


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
        """The activity in the committed part of a `unit`, with `top` contexts for each neuron."""
        activation = _padded(table["activation"], top, -np.inf)
        context = _padded(table["context"], top, -1)
        position = _padded(table["position"], top, 0)
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
        order = np.lexsort((context, -activation), axis=1)[:, : self.activation.shape[1]]
        self.activation, self.context, self.position = (
            np.take_along_axis(of, order, 1) for of in (activation, context, position)
        )
        self.total = self.total + other.total
        self.histogram = self.histogram + other.histogram
        self.not_finite = self.not_finite + other.not_finite

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


def _padded(column: pa.ChunkedArray, top: int, fill: float) -> np.ndarray:
    """A column of lists of at most `top` numbers as an array [N, top], filled up with `fill`."""
    lists = column.combine_chunks()
    values = lists.flatten().to_numpy()
    kind = np.float64 if isinstance(fill, float) else np.int64
    whole = np.full((len(lists), top), fill, dtype=kind)
    is_entry = np.arange(top) < pc.list_value_length(lists).to_numpy()[:, None]
    whole[is_entry] = values
    return whole
