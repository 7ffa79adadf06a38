"""A unit of the corpus in a worker: texts become contexts, and what every neuron does there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from evaluation.benchmark.contexts import batches, pieces_of, template_of
from evaluation.benchmark.corpus import Corpus, Entry, units
from evaluation.schema import CONTEXTS_PART, CONTEXTS_TEXTS
from jobs.plan.inputs import task_of, without_samples
from jobs.stages.neurons.heatmaps import HeatmapTask
from jobs.tasks import sources
from lrp_core.near_ties import SPARE

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from lrp_core import ModelView
    from lrp_core.activity import Activity

_CHARACTERS_A_TOKEN = 4  # of progress


@dataclass(frozen=True)
class ReadingTask:
    """Texts whose contexts are looked at together.

    The part of `paths[0]` holds what neurons do, that of `paths[1]` the contexts. The latter is written last.
    """

    title: str
    paths: tuple[str, str]
    entries: tuple[Entry, ...]
    length: int  # most tokens of a context
    top: int  # contexts of a neuron that are kept; its part has SPARE more
    token_budget: int
    ties: str = ""  # of a unit that is the whole corpus: the part of near ties, which is made beside it
    heatmaps: tuple[HeatmapTask, ...] = ()  # likewise

    @property
    def tokens(self) -> int:
        """About how many there are."""
        return sum(len(entry.text) for entry in self.entries) // _CHARACTERS_A_TOKEN


@dataclass(frozen=True)
class CorpusReader:
    """Ray Data task: makes the units of the corpus that are wanted, in order, as the corpus is read."""

    corpus: Corpus
    characters: int  # of a unit
    make: Callable[[int, list[Entry]], ReadingTask]  # of a unit's number and texts
    wanted: frozenset[int]  # numbers of units

    def __call__(self, table: pa.Table) -> Iterator[pa.Table]:
        """The units for the table without a task; a table that has one is a unit already."""
        if task_of(table.select(["task"]).to_pylist()[0]) is not None:
            yield table
            return
        sources()  # a package's sources are entered in the table where they are read
        for number, entries in enumerate(units(self.corpus, self.characters)):
            if number in self.wanted:
                yield without_samples(self.make(number, entries))


def read(
    view: ModelView, tokenizer: PreTrainedTokenizerBase, task: ReadingTask, token_budget: int
) -> list[tuple[pa.Table, pa.Schema]]:
    """The tables of a unit with their schemas, in the order of its paths. Batches depend on the unit alone."""
    from lrp_core.activity import Activity

    length = min(task.length, view.max_length)
    pieces = list(pieces_of(tokenizer, task.entries, length))
    activity = Activity(view, min(task.top + SPARE, max(1, len(pieces))), template_of(tokenizer))
    for part in batches([len(piece.ids) for piece in pieces], token_budget):
        activity.add([pieces[at].ids for at in part], part)
    texts = len({piece.entry.number for piece in pieces})
    facts = {"contexts": len(pieces), "tokens": activity.tokens, "without_tokens": len(task.entries) - texts}
    neurons, named = _neurons(view, activity, facts)
    kept = pa.Table.from_pylist([pieces[at].row(at) for at in named], schema=CONTEXTS_TEXTS)
    return [(neurons, CONTEXTS_PART), (kept, CONTEXTS_TEXTS)]


def _neurons(view: ModelView, activity: Activity, facts: dict[str, int]) -> tuple[pa.Table, list[int]]:
    """A row for each neuron, and the contexts that these rows name, in order."""
    from lrp_core.activity import NONE

    named: set[int] = set()
    tables = []
    for layer in range(view.n_layers):
        own = activity.layer(layer)
        tensors = (own.values, own.contexts, own.positions, own.total, own.histogram, own.not_finite)
        values, contexts, positions, total, histogram, not_finite = (one.cpu().numpy() for one in tensors)
        there = contexts != NONE
        named.update(np.unique(contexts[there]).tolist())
        columns = {
            "layer": np.full(len(total), layer),
            "neuron": np.arange(len(total)),
            **{
                name: _lists(of, there)
                for name, of in (("activation", values), ("context", contexts), ("position", positions))
            },
            "total": total,
            "histogram": _lists(histogram, np.ones(histogram.shape, dtype=bool)),
            "not_finite": not_finite,
            **{name: np.full(len(total), count) for name, count in facts.items()},
        }
        tables.append(pa.table(columns))
    return pa.concat_tables(tables), sorted(named)


def _lists(values: np.ndarray, there: np.ndarray) -> pa.Array:
    """The rows of `values` [N, K] as lists of the entries that are `there` [N, K]."""
    ends = np.concatenate([[0], there.sum(1).cumsum()])
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(values[there]))
