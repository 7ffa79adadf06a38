"""The corpus pass on the driver: which units are missing, and how the parts that workers commit become the artifact.

A part holds what every neuron does in one unit of texts. Parts are merged one by one, so that the driver holds no more
than what is kept of a neuron, however long the corpus is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import pyarrow as pa

from evaluation.benchmark.corpus import CorpusSurvey, Entry, stamps
from evaluation.schema import ACTIVATIONS, CONTEXTS, CONTEXTS_PART, CONTEXTS_TEXTS, CONTEXTS_TIES
from jobs.config import RunConfig
from jobs.plan.corpus import Surveyed, corpus_settings, surveyed
from jobs.plan.inputs import without_samples
from jobs.plan.products.contexts import ContextsCell
from jobs.plan.products.heatmaps import HeatmapsCell, wanted_heatmaps
from jobs.stages.neurons.heatmaps import HeatmapTask, complete, layer_name, tasks_of
from jobs.stages.neurons.merged import NOWHERE, UNIT, Merged, with_keys
from jobs.stages.neurons.reading import CorpusReader, ReadingTask
from jobs.stages.neurons.ties import TiesTask
from jobs.store import Artifact, Ledger
from lrp_core.types import UserError

ROWS_AT_ONCE = 1 << 18  # contexts that are written from one pass over the parts
_TIES = "ties"  # the unit of a shard
_FINE = ("float32", "float64")  # precisions whose steps are smaller than what counts as a near tie
_FACTS = ("contexts", "tokens", "without_tokens")


@dataclass(frozen=True)
class CorpusReading:
    """What is to be read of the corpus by one model."""

    config: RunConfig
    ledger: Ledger
    cell: ContextsCell
    surveyed: Surveyed  # the corpus, its files and their stamps
    heatmaps: HeatmapsCell | None = None  # of the contexts, where one unit is the whole corpus

    @property
    def missing(self) -> frozenset[int]:
        """The units whose parts are not there."""
        there, units = set(self.ledger.shards(self.cell.artifact)), range(self.surveyed.survey.units)
        return frozenset(unit for unit in units if self.cell.artifact.shard(_part(unit)) not in there)

    def reader(self) -> CorpusReader:
        """Makes the missing units."""
        settings, model = corpus_settings(self.config), self.cell.model.resolved
        length = min(settings.tokens, model.max_length)
        budget = model.config.token_budget or self.config.token_budget
        maps = tuple(tasks_of(self.config, self.ledger, self.heatmaps)) if self.heatmaps else ()
        # It travels to the workers, so it holds nothing of the run's samples.
        ties = self._ties_path if self.surveyed.survey.units == 1 and self._may_be_tied else ""
        make = partial(_task, self.cell.artifact, length, settings.top, budget, ties, maps)
        return CorpusReader(self.surveyed.corpus, self.surveyed.characters, make, self.missing)

    def block(self) -> pa.Table:
        """What the reader makes the units for."""
        return without_samples(None)

    @property
    def undecided(self) -> bool:
        """Whether all units are there, and contexts are to be computed alone before their ranks are known."""
        if self.missing or not self._may_be_tied or self.ledger.store.exists(self._ties_path):
            return False
        return len(self._near_ties) > 0

    def ties(self) -> pa.Table:
        """The unit of near ties."""
        artifact = self.cell.artifact
        texts = _texts(self.ledger, artifact, self.surveyed.survey.units, self._near_ties["context"].to_numpy())
        title = f"contexts.{artifact.model}.{artifact.task}.{artifact.dtype}.{_TIES}"
        return without_samples(TiesTask.of(title, self._ties_path, self._near_ties, texts))

    @property
    def _ties_path(self) -> str:
        return _paths(self.cell.artifact, _TIES)[0]

    @property
    def _may_be_tied(self) -> bool:
        return self.cell.artifact.dtype in _FINE

    @cached_property
    def _near_ties(self) -> pa.Table:
        top = corpus_settings(self.config).top
        merged, _ = _merged(self.ledger, self.cell.artifact, self.surveyed.survey.units, top)
        return merged.near_ties(top)

    def close(self) -> list[str]:
        """Merge the parts and enter the artifact where all are there, and near ties are decided; failures."""
        if self.missing or self.undecided:
            return []
        try:
            if stamps(self.surveyed.corpus) != self.surveyed.stamps:
                return [f"the files of the corpus {self.cell.artifact.task} changed while they were read: run again"]
        except UserError as error:
            return [f"the corpus {self.cell.artifact.task} is gone: {error}"]
        _complete(self.config, self.ledger, self.cell, self.surveyed, self._ties_path)
        if self.heatmaps:
            complete(self.config, self.ledger, self.heatmaps)
        return []


def reading_of(config: RunConfig, ledger: Ledger, cell: ContextsCell) -> CorpusReading:
    """Raises UserError where the corpus cannot be had."""
    corpus = surveyed(config, ledger)
    # Of one unit, no other part takes a neuron's contexts away: they can be explained at once.
    whole = corpus.survey.units == 1
    maps = next(wanted_heatmaps(config, cell.model, ledger), None) if whole else None
    ready = maps is not None and all(map(ledger.is_done, maps.neurons))
    return CorpusReading(config, ledger, cell, corpus, maps if ready else None)


def account(ledger: Ledger, cell: ContextsCell) -> Iterator[str]:
    """A line of what was read of the corpus; none where it is not done."""
    record = ledger.record(cell.artifact)
    if record is None:
        return
    survey = CorpusSurvey(**record["corpus"]["survey"])
    read = f"{survey.texts:,} texts = {record['contexts']:,} contexts of {record['tokens']:,} tokens"
    left_out = f"; {record['without_tokens']} texts have none" if record["without_tokens"] else ""
    yield f"{cell.artifact.model}, {cell.artifact.task}: {read}{left_out}"
    if record["not_finite"]:
        what = f"{record['not_finite']:,} activations in {cell.artifact.dtype} are not finite and count nowhere"
        yield f"{cell.artifact.model}, {cell.artifact.task}: {what}"
    if survey.unusable:
        yield f"{cell.artifact.task}: {survey.unusable} places hold no text, the first is {survey.first_unusable}"


def means_of(ledger: Ledger, contexts: Artifact) -> tuple[str, ...]:
    """The shards of activations beside complete contexts, one a layer, the lowest first."""
    return tuple(f"{contexts.folders[1]}/{shard}" for shard in (ledger.record(contexts) or {})["shards"])


def _part(unit: int) -> str:
    return f"part-{unit:06d}"


def _task(
    artifact: Artifact,
    length: int,
    top: int,
    budget: int,
    ties: str,
    maps: tuple[HeatmapTask, ...],
    unit: int,
    entries: list[Entry],
) -> ReadingTask:
    contexts, neurons = _paths(artifact, _part(unit))
    title = f"contexts.{artifact.model}.{artifact.task}.{artifact.dtype}.{_part(unit)}"
    return ReadingTask(title, (neurons, contexts), tuple(entries), length, top, budget, ties, maps)


def _paths(artifact: Artifact, shard: str) -> tuple[str, str]:
    """The paths of a shard of contexts, and of the one of neurons beside it."""
    contexts, neurons = (f"{folder}/{artifact.shard(shard)}" for folder in artifact.folders)
    return contexts, neurons


def _complete(config: RunConfig, ledger: Ledger, cell: ContextsCell, corpus: Surveyed, ties: str) -> None:
    from lrp_core.activity import BOUNDARIES

    store, artifact, survey, top = ledger.store, cell.artifact, corpus.survey, corpus_settings(config).top
    merged, facts = _merged(ledger, artifact, survey.units, top)
    merged.decide(top, store.read(ties, CONTEXTS_TIES) if store.exists(ties) else CONTEXTS_TIES.empty_table())
    layers = sorted(set(merged.layer.tolist()))
    for group in _groups(merged, layers):
        rows = np.isin(merged.layer, group)
        texts = _texts(ledger, artifact, survey.units, merged.context[rows])
        for layer in group:
            own = merged.of(merged.layer == layer)
            contexts, neurons = _paths(artifact, layer_name(layer))
            store.write_shard(neurons, own.activations(), ACTIVATIONS)
            store.write_shard(contexts, own.contexts(texts), CONTEXTS)
    record = {
        "shards": [artifact.shard(layer_name(layer)) for layer in layers],
        "corpus": corpus.record(),
        "boundaries": list(BOUNDARIES),
        **facts,
        "not_finite": int(merged.not_finite.sum()),
        "model": {"identity": cell.model.resolved.identity, "id": cell.model.resolved.config.id},
        "tokenizer": cell.model.tokenizer,
    }
    ledger.commit(artifact, record, config=config.model_dump(mode="json"))
    parts = [path for unit in range(survey.units) for path in _paths(artifact, _part(unit))]
    for path in (*parts, ties):
        store.delete(path)


def _merged(ledger: Ledger, artifact: Artifact, units: int, top: int) -> tuple[Merged, dict[str, int]]:
    merged: Merged | None = None
    facts = dict.fromkeys(_FACTS, 0)
    for unit in range(units):
        table = ledger.store.read(_paths(artifact, _part(unit))[1], CONTEXTS_PART)
        part = Merged.part(table, unit, top)
        facts = {name: count + table[name][0].as_py() for name, count in facts.items()}
        if merged is None:
            merged = part
        else:
            merged.add(part)
    assert merged is not None
    return merged, facts


def _groups(merged: Merged, layers: Sequence[int]) -> Iterator[list[int]]:
    """Layers that are written together: one at least, and no more than ROWS_AT_ONCE contexts."""
    rows = int((merged.layer == layers[0]).sum()) * merged.context.shape[1]
    size = max(1, ROWS_AT_ONCE // max(1, rows))
    for start in range(0, len(layers), size):
        yield list(layers[start : start + size])


def _texts(ledger: Ledger, artifact: Artifact, units: int, contexts: np.ndarray) -> pa.Table:
    """The rows of these contexts, by `key`, in ascending order."""
    keys = np.unique(contexts[contexts != NOWHERE])
    tables: list[pa.Table] = []
    for unit in range(units):
        own = keys[keys // UNIT == unit] % UNIT
        if len(own):
            table = ledger.store.read(_paths(artifact, _part(unit))[0], CONTEXTS_TEXTS)
            table = table.take(pa.array(np.searchsorted(table["context"].to_numpy(), own)))
            tables.append(with_keys(table, unit))
    if not tables:
        empty: Any = CONTEXTS_TEXTS.empty_table()
        return empty.append_column("key", pa.array([], pa.int64()))
    return pa.concat_tables(tables).combine_chunks()
