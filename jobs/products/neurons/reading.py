"""The work on a unit of a corpus: a worker cuts texts into contexts and records the activations of neurons."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from evaluation.benchmark.corpus import Corpus, batches, pieces_of, template_of, units
from evaluation.schema import CONTEXTS_TEXTS
from jobs.products.record import Row
from jobs.tasks import sources
from lrp_core.neurons.near_ties import SPARE

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from jobs.runner.task import Task
    from lrp_core import ModelView
    from lrp_core.neurons.activity import Activity

_CHARACTERS_A_TOKEN = 4  # a guess, for the progress


@dataclass(frozen=True)
class CorpusReader:
    """Reads a corpus from start to end, and gives each unit its texts as rows."""

    corpus: Corpus
    characters: int  # of a unit

    def __call__(self, tasks: Sequence[Task]) -> Iterator[Task]:
        """Yield the tasks with the texts of their units as rows. Tasks about no texts come first, unchanged."""
        yield from (task for task in tasks if task.parts[0].inputs is not None)
        if all(task.parts[0].inputs is not None for task in tasks):
            return
        sources()  # enters sources of installed packages in the table
        by_unit = {task.parts[0].shard: task for task in tasks}
        for number, entries in enumerate(units(self.corpus, self.characters)):
            task = by_unit.get(f"part-{number:06d}")
            if task is not None:
                characters = sum(len(entry.text) for entry in entries)
                rows = tuple({"sample_id": entry.where, "entry": entry} for entry in entries)
                yield replace(task, rows=rows, size=len(rows), tokens=characters // _CHARACTERS_A_TOKEN)


def read(
    view: ModelView, tokenizer: PreTrainedTokenizerBase, rows: Sequence[Row], length: int, top: int, token_budget: int
) -> tuple[pa.Table, pa.Table]:
    """The activity of neurons in the texts of `rows`, and the contexts into which these are cut.

    Returns a table of schema CONTEXTS_PART, with `top` contexts for each neuron and SPARE more, and a table of schema
    CONTEXTS_TEXTS, whose contexts have at most `length` tokens. Batches depend only on the rows and the budget.
    """
    from lrp_core.neurons.activity import Activity

    entries = [row["entry"] for row in rows]
    pieces = list(pieces_of(tokenizer, entries, min(length, view.max_length)))
    activity = Activity(view, min(top + SPARE, max(1, len(pieces))), template_of(tokenizer))
    for part in batches([len(piece.ids) for piece in pieces], token_budget):
        activity.add([pieces[at].ids for at in part], part)
    texts = len({piece.entry.number for piece in pieces})
    facts = {"contexts": len(pieces), "tokens": activity.tokens, "without_tokens": len(entries) - texts}
    neurons, named = _neurons(view, activity, facts)
    return neurons, pa.Table.from_pylist([pieces[at].row(at) for at in named], schema=CONTEXTS_TEXTS)


def _neurons(view: ModelView, activity: Activity, facts: dict[str, int]) -> tuple[pa.Table, list[int]]:
    """A row for each neuron, and the numbers of the contexts in these rows, ascending; `facts` are further columns."""
    from lrp_core.neurons.activity import NONE

    named: set[int] = set()
    tables = []
    for layer in range(view.n_layers):
        layer_activity = activity.layer(layer)
        tensors = (
            layer_activity.values,
            layer_activity.contexts,
            layer_activity.positions,
            layer_activity.total,
            layer_activity.histogram,
            layer_activity.not_finite,
        )
        values, contexts, positions, total, histogram, not_finite = (tensor.cpu().numpy() for tensor in tensors)
        is_kept = contexts != NONE
        named.update(np.unique(contexts[is_kept]).tolist())
        columns = {
            "layer": np.full(len(total), layer),
            "neuron": np.arange(len(total)),
            "activation": _lists(values, is_kept),
            "context": _lists(contexts, is_kept),
            "position": _lists(positions, is_kept),
            "total": total,
            "histogram": _lists(histogram, np.ones(histogram.shape, dtype=bool)),
            "not_finite": not_finite,
        }
        for name, count in facts.items():
            columns[name] = np.full(len(total), count)
        tables.append(pa.table(columns))
    return pa.concat_tables(tables), sorted(named)


def _lists(values: np.ndarray, is_kept: np.ndarray) -> pa.Array:
    """The rows of `values` [N, K] as lists of those entries for which `is_kept` [N, K] is True."""
    ends = np.concatenate([[0], is_kept.sum(1).cumsum()])
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(values[is_kept]))
