"""The actor of a pool of neurons: it opens the model once and turns units into committed shards.

There are units of five kinds: samples whose neurons are knocked out, texts of the corpus, contexts whose ranks are near
ties, contexts that are explained, and neurons whose words are looked up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from evaluation.schema import ACTIVATIONS, CONTEXTS_TIES, HEATMAPS, KNOCKOUTS, WRITINGS
from jobs.cluster.attempts import undivided
from jobs.cluster.reports import reported
from jobs.plan.inputs import UNIT_COLUMNS, samples_of, task_of
from jobs.plan.models import load_tokenizer
from jobs.stages.neurons.heatmaps import HeatmapTask, explained, from_merged, stored
from jobs.stages.neurons.merged import Merged, with_keys
from jobs.stages.neurons.reading import ReadingTask, read
from jobs.stages.neurons.ties import TiesTask, computed_alone
from jobs.stages.neurons.writings import WritingTask, written
from jobs.stages.undivided import UndividedWorker, that_fits

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from evaluation.scoring.knockouts import Neurons
    from lrp_core import ModelView


@dataclass(frozen=True)
class Ranked:
    """What a unit makes for one ranking: the shard `path`."""

    ranking: str
    explanation: str
    path: str
    neurons: Mapping[str, Neurons] | None  # by sample id; None: the worker ranks them


@dataclass(frozen=True)
class KnockoutTask:
    """A unit of samples with its rankings."""

    title: str
    parts: tuple[Ranked, ...]
    counts: tuple[int, ...]
    token_budget: int
    tokens: int  # of the forwards
    means: tuple[str, ...]  # shards of activations with the values that neurons get; empty: they are zero


class NeuronWorker(UndividedWorker):
    """Called by Ray Data with one unit at a time: a row with its task and its samples as lists."""

    _tokenizer: PreTrainedTokenizerBase | None = None
    _means: tuple[tuple[str, ...], list[np.ndarray] | None] = ((), None)  # what was read last, and its shards

    def __call__(self, table: pa.Table) -> pa.Table:
        """Commit the unit; its report."""
        (row,) = table.to_pylist()
        task = task_of(row)
        if isinstance(task, ReadingTask):
            return reported(task.title, len(task.entries), task.tokens, lambda: {"splits": self._read(task)})
        if isinstance(task, WritingTask):
            return reported(task.title, 1, len(task.neurons), lambda: self._write(task))
        if isinstance(task, TiesTask):
            return reported(task.title, 1, sum(map(len, task.ids.values())), lambda: self._decide(task))
        if isinstance(task, HeatmapTask):
            return reported(task.title, 1, len(task.neurons), lambda: {"splits": self._explain(task)})
        rows = samples_of(row, UNIT_COLUMNS, self._store)
        return reported(task.title, len(rows), task.tokens, lambda: {"splits": self._run(task, rows)})

    def _read(self, task: ReadingTask) -> int:
        """Look what neurons do in the texts and commit it; as `_run`."""
        view, tokenizer = self._opened(), self._words()
        with undivided(self._store, task.title, self._max_attempts, self._run_name):
            tables, splits = that_fits(partial(read, view, tokenizer, task), task.token_budget)
            for path, (table, schema) in zip(task.paths, tables, strict=True):
                self._store.write_shard(path, table, schema)
            if task.ties or task.heatmaps:
                (neurons, _), (texts, _) = tables
                splits += self._whole(task, neurons, with_keys(texts, 0))
            return splits

    def _whole(self, task: ReadingTask, neurons: pa.Table, texts: pa.Table) -> int:
        """What follows where one unit is the whole corpus: near ties, and heat maps; as `_run`."""
        merged, alone = Merged.part(neurons, 0, task.top), CONTEXTS_TIES.empty_table()
        if task.ties:
            ties = TiesTask.of(task.title, task.ties, merged.near_ties(task.top), texts)
            alone = computed_alone(self._opened(), self._words(), ties)
            self._store.write_shard(ties.path, alone, CONTEXTS_TIES)
        merged.decide(task.top, alone)
        return sum(self._heatmap(own, from_merged(merged, texts, own)) for own in task.heatmaps)

    def _decide(self, task: TiesTask) -> dict[str, Any]:
        """Compute contexts alone and commit what neurons do there; as `_run`."""
        view, tokenizer = self._opened(), self._words()
        with undivided(self._store, task.title, self._max_attempts, self._run_name):
            self._store.write_shard(task.path, computed_alone(view, tokenizer, task), CONTEXTS_TIES)
        return {"splits": 0}

    def _explain(self, task: HeatmapTask) -> int:
        """Explain contexts and commit it; as `_run`."""
        self._opened()
        with undivided(self._store, task.title, self._max_attempts, self._run_name):
            return self._heatmap(task, stored(self._store, task))

    def _heatmap(self, task: HeatmapTask, rows: Iterable[Mapping[str, Any]]) -> int:
        view, every = self._opened(), list(rows)
        table, splits = that_fits(partial(explained, view, every, task.method), task.token_budget)
        self._store.write_shard(task.path, table, HEATMAPS)
        return splits

    def _words(self) -> PreTrainedTokenizerBase:
        if self._tokenizer is None:
            self._tokenizer = load_tokenizer(self._model.config)
        return self._tokenizer

    def _write(self, task: WritingTask) -> dict[str, Any]:
        """Look the words of neurons up and commit them; as `_run`."""
        view, tokenizer = self._opened(), self._words()
        with undivided(self._store, task.title, self._max_attempts, self._run_name):
            self._store.write_shard(task.path, written(view, tokenizer, task), WRITINGS)
        return {"splits": 0}

    def _run(self, task: KnockoutTask, rows: Sequence[dict[str, Any]]) -> int:
        """Knock out and commit; how often the token budget was halved. Raises RuntimeError for a deadly unit."""
        from lrp_core.readout import rows_for

        view = self._opened()
        with undivided(self._store, task.title, self._max_attempts, self._run_name):
            taken = rows_for(view, self._model.taken(rows))
            means = self._means_of(task.means)
            tables, splits = that_fits(partial(_tables, view, task, taken, self._seed, means), task.token_budget)
            for part, table in zip(task.parts, tables, strict=True):
                self._store.write_shard(part.path, table, KNOCKOUTS)
        return splits

    def _means_of(self, shards: tuple[str, ...]) -> list[np.ndarray] | None:
        """The means [F] in shards of a layer each, lowest first; NaN of a neuron that was never finite, and of one
        whose expert no token was sent to.
        """
        if shards and shards != self._means[0]:
            tables = [self._store.read(shard, ACTIVATIONS).sort_by("neuron") for shard in shards]
            self._means = shards, [table["mean"].to_numpy() for table in tables]
        return self._means[1] if shards else None


def _tables(
    view: ModelView,
    task: KnockoutTask,
    rows: Sequence[Mapping[str, Any]],
    seed: int,
    means: list[np.ndarray] | None,
    token_budget: int,
) -> list[pa.Table]:
    """A table for each part; a sample that a method rejected has no rows there."""
    from evaluation.scoring.knockouts import Knockout

    by_part: list[list[dict[str, Any]]] = [[] for _ in task.parts]
    for explanation in dict.fromkeys(part.explanation for part in task.parts):
        own = [at for at, part in enumerate(task.parts) if part.explanation == explanation]
        knockout = Knockout(view, task.counts, explanation, seed, token_budget, means)
        for row in rows:
            rankings = {
                part.ranking: None if part.neurons is None else part.neurons[row["sample_id"]]
                for part in (task.parts[at] for at in own)
                if part.neurons is None or row["sample_id"] in part.neurons
            }
            told = knockout.sample(row, rankings)
            for at in own:
                if (ranking := task.parts[at].ranking) in told:
                    numbers = {"removed": [0, *task.counts], "explained": told[ranking].tolist()}
                    facts = {"sample_id": row["sample_id"], "explanation": explanation, "ranking": ranking}
                    by_part[at].append(facts | numbers)
    return [pa.Table.from_pylist(rows, schema=KNOCKOUTS) for rows in by_part]
