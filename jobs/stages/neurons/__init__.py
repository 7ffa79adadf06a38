"""Neurons: what they answer to in a corpus, and what models say without those that methods rank first.

One pool of workers a model and precision; where means over the corpus take the place of neurons, one before that reads
the corpus. The driver reads the rankings from complete cells of neurons and cuts each task's samples into units; a
worker knocks out the neurons of all rankings of a unit's samples and commits a shard to the artifact of each. Of the
corpus, see `jobs.stages.neurons.corpus`. Near ties are decided, and contexts are explained, by pools that follow, or
beside the reading where one unit holds all.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evaluation.schema import KNOCKOUTS, NEURONS
from jobs.cluster.scheduler import Work, run_all
from jobs.config import RunConfig
from jobs.config.neurons import KnockoutConfig
from jobs.plan.cells import Plan, make_plan
from jobs.plan.products.contexts import ContextsCell, wanted_contexts
from jobs.plan.products.heatmaps import HeatmapsCell, wanted_heatmaps
from jobs.plan.products.knockouts import OTHERS, RankedCell, subset, wanted_cells
from jobs.plan.products.writings import WritingsCell, wanted_writings
from jobs.plan.units import FORWARD_FACTOR, NO_RELEVANCE, Unit, cut_by_tokens
from jobs.stages.neurons.corpus import CorpusReading, account, means_of, reading_of
from jobs.stages.neurons.heatmaps import blocks_of
from jobs.stages.neurons.heatmaps import complete as explained
from jobs.stages.neurons.worker import KnockoutTask, NeuronWorker, Ranked
from jobs.stages.neurons.writings import block_of, complete
from jobs.stages.summary import StageSummary
from jobs.store import Ledger, Store
from lrp_core.types import UserError

UNIT_TOKENS = 2_000_000  # of the forwards of one ranking


def neurons(config: RunConfig, store: Store) -> StageSummary:
    """Look what neurons answer to in the corpus, and knock out what every complete ranking names; what is not done yet.

    Raises UserError without `neurons`, and for a corpus that cannot be had.
    """
    if config.neurons is None:
        raise UserError("config key 'neurons' says of which tasks neurons are kept, as neurons.tasks={sva: 100}")
    plan, ledger = make_plan(config, store), Ledger(store)
    wanted = [cell for model in plan.models for cell in wanted_cells(config, model, ledger)]
    todo = [cell for cell in wanted if not ledger.is_done(cell.artifact)]
    contexts = list(wanted_contexts(config, plan, ledger))
    unread = [cell for cell in contexts if not ledger.is_done(cell.artifact)]
    for artifact in (*(cell.artifact for cell in todo), *(cell.artifact for cell in unread)):
        ledger.discard_damaged(artifact)
    failures = list(plan.failures.values())
    failures += [f"{model}: {task} is not prepared: run `closelook prepare`" for model, task in plan.unprepared]
    read_first = any(cell.means for cell in todo)
    if read_first:
        failures += _run(config, ledger, _pools(config, ledger, readings=unread))
    ready = [cell for cell in todo if all(map(ledger.is_done, cell.of))]
    for cell in todo:
        if cell.neurons and not ledger.is_done(cell.neurons):
            failures.append(f"{cell.neurons} is not complete: run `closelook attribute`")
        elif cell not in ready:
            failures.append(f"{cell.means} is not complete: no means take the place of neurons")
    unwritten = [
        cell
        for model in plan.models
        for cell in wanted_writings(config, model, ledger)
        if not ledger.is_done(cell.artifact) and all(map(ledger.is_done, cell.of))
    ]
    for words in unwritten:
        ledger.discard_damaged(words.artifact)
    failures += _run(config, ledger, _pools(config, ledger, ready, [] if read_first else unread, unwritten))
    failures += _explain(config, ledger, plan)
    done = sum(ledger.is_done(cell.artifact) for cell in todo)
    read = sum(ledger.is_done(own.artifact) for own in unread)
    lines = [f"{done} sets of knock-outs computed, {len(wanted) - len(todo)} were up to date"] if wanted else []
    lines += [said for own in contexts for said in account(ledger, own)]
    skipped = len(wanted) - len(todo) + len(contexts) - len(unread)
    return StageSummary("neurons", done + read, skipped, tuple(dict.fromkeys(failures)), tuple(lines))


def _explain(config: RunConfig, ledger: Ledger, plan: Plan) -> list[str]:
    """Explain contexts that were read, as far as that was not done beside the reading; failures."""
    cells = [cell for model in plan.models for cell in wanted_heatmaps(config, model, ledger)]
    todo = [cell for cell in cells if not ledger.is_done(cell.artifact) and ledger.is_done(cell.contexts.artifact)]
    for maps in todo:
        ledger.discard_damaged(maps.artifact)
    late = {neurons for cell in todo for neurons in cell.neurons if not ledger.is_done(neurons)}
    failures = [f"{neurons} is not complete: run `closelook attribute`" for neurons in sorted(late, key=str)]
    ready = [cell for cell in todo if late.isdisjoint(cell.neurons)]
    return failures + _run(config, ledger, _pools(config, ledger, heatmaps=ready))


@dataclass
class Pool:
    """What is missing of a model in one precision."""

    ranked: list[RankedCell] = field(default_factory=list)
    readings: list[CorpusReading] = field(default_factory=list)  # one at most
    writings: list[WritingsCell] = field(default_factory=list)  # one at most
    heatmaps: list[HeatmapsCell] = field(default_factory=list)  # one at most

    @property
    def first(self) -> RankedCell | ContextsCell | WritingsCell | HeatmapsCell:
        if self.ranked:
            return self.ranked[0]
        words_or_maps: list[WritingsCell | HeatmapsCell] = [*self.writings, *self.heatmaps]
        return words_or_maps[0] if words_or_maps else self.readings[0].cell


def _pools(
    config: RunConfig,
    ledger: Ledger,
    ranked: Iterable[RankedCell] = (),
    readings: Iterable[ContextsCell] = (),
    writings: Iterable[WritingsCell] = (),
    heatmaps: Iterable[HeatmapsCell] = (),
) -> list[Pool]:
    pools: dict[tuple[str, str], Pool] = defaultdict(Pool)
    for own in readings:
        pools[own.model.name, own.artifact.dtype].readings.append(reading_of(config, ledger, own))
    for cell in ranked:
        pools[cell.model.name, cell.artifact.dtype].ranked.append(cell)
    for words in writings:
        pools[words.model.name, words.artifact.dtype].writings.append(words)
    for maps in heatmaps:
        pools[maps.model.name, maps.artifact.dtype].heatmaps.append(maps)
    return list(pools.values())


def _run(config: RunConfig, ledger: Ledger, pools: Sequence[Pool]) -> list[str]:
    """Do what pools have to do, several at once, then what is left of the corpora that they read; the failures."""
    failures = _through(config, ledger, pools)
    read = [reading for pool in pools for reading in pool.readings]
    return failures + _through(config, ledger, [Pool(readings=[reading]) for reading in read if reading.undecided])


def _through(config: RunConfig, ledger: Ledger, pools: Sequence[Pool]) -> list[str]:
    works = [_work(config, ledger, pool) for pool in pools]
    return run_all(config, ledger.store, works, stage="neurons", unit="samples")


def _work(config: RunConfig, ledger: Ledger, pool: Pool) -> Work:
    """The missing knock-outs and contexts of a model in one precision; those that are whole then are complete."""
    assert config.neurons is not None
    model, dtype, settings = pool.first.model, pool.first.artifact.dtype, config.neurons.knockout
    by_task: dict[str, list[RankedCell]] = defaultdict(list)
    for cell in pool.ranked:
        by_task[cell.artifact.task].append(cell)
    blocks: list[tuple[Callable[[], pa.Table], int]] = []
    units: dict[str, list[Unit]] = {}
    for task, cells in by_task.items():
        assert settings is not None
        inputs = model.inputs[task]
        tokens = inputs.lengths * (1 + len(settings.counts))
        units[task] = cut_by_tokens(inputs, subset(config, model, task), tokens, UNIT_TOKENS)
        blocks += _blocks(config, settings, ledger, cells, units[task])
    blocks += [(partial(block_of, ledger, cell), 1) for cell in pool.writings]
    for maps in pool.heatmaps:
        blocks += [(block, 1) for block in blocks_of(config, ledger, maps)]
    blocks += [(reading.ties, 1) for reading in pool.readings if reading.undecided]
    missing = sum(len(reading.missing) for reading in pool.readings)
    for reading in pool.readings if missing else ():
        blocks.append((reading.block, reading.surveyed.survey.texts))

    def close() -> Sequence[str]:
        for cell in pool.ranked:
            _complete(config, ledger, cell, units[cell.artifact.task])
        for words in pool.writings:
            complete(config, ledger, words)
        for maps in pool.heatmaps:
            explained(config, ledger, maps)
        return [line for reading in pool.readings for line in reading.close()]

    return Work(
        name=f"{model.name} {dtype}",
        model=model.resolved.config,
        blocks=[block for block, _ in blocks],
        worker=NeuronWorker,
        arguments=(
            ledger.store,
            model.resolved,
            dtype,
            config.seed,
            config.max_attempts,
            uuid.uuid4().hex,
        ),
        size=sum(size for _, size in blocks),
        dtypes=(dtype,),
        on_end=close,
        reader=pool.readings[0].reader() if missing else None,
        read=len(blocks) - 1 + missing if missing else 0,
    )


def _blocks(
    config: RunConfig, settings: KnockoutConfig, ledger: Ledger, cells: Sequence[RankedCell], units: Sequence[Unit]
) -> Iterator[tuple[Callable[[], pa.Table], int]]:
    """(what makes a unit's table, samples) of each unit that some of the cells of one task lack."""
    first, store = cells[0], ledger.store
    inputs = first.model.inputs[first.artifact.task]
    ids = inputs.ids.to_pylist()
    rankings = [_rankings(ledger, cell) for cell in cells]
    means = means_of(ledger, first.means) if first.means else ()
    budget = FORWARD_FACTOR * (first.model.resolved.config.token_budget or config.token_budget)
    for unit in units:
        names = [ids[row] for row in unit.rows]
        parts = tuple(
            Ranked(cell.ranking, cell.explanation, _path(cell, unit), own and {n: own[n] for n in names if n in own})
            for cell, own in zip(cells, rankings, strict=True)
            if not store.exists(_path(cell, unit))
        )
        if parts:
            title = f"knockouts.{first.artifact.model}.{inputs.task}.{first.artifact.dtype}.{unit.name}"
            task = KnockoutTask(title, parts, settings.counts, budget, unit.tokens * len(parts), means)
            yield partial(inputs.unit, task, unit.rows), len(unit.rows)


def _rankings(ledger: Ledger, cell: RankedCell) -> dict[str, list[tuple[int, int]]] | None:
    """(layer, neuron) by sample, the most relevant first; None where the worker makes the ranking."""
    if cell.neurons is None:
        assert cell.ranking in OTHERS
        return None
    table = ledger.read(cell.neurons, NEURONS, ["sample_id", "explanation", "layer", "neuron"])
    table = table.filter(pc.equal(table["explanation"], cell.explanation))
    columns = (table[name].to_pylist() for name in ("sample_id", "layer", "neuron"))
    return {name: list(zip(layers, own, strict=True)) for name, layers, own in zip(*columns, strict=True)}


def _path(cell: RankedCell, unit: Unit) -> str:
    return f"{cell.artifact.folder}/{cell.artifact.shard(unit.name)}"


def _complete(config: RunConfig, ledger: Ledger, cell: RankedCell, units: Sequence[Unit]) -> None:
    """Enter what has all its shards."""
    shards, present = [cell.artifact.shard(unit.name) for unit in units], ledger.sizes(cell.artifact)
    if not all(shard in present for shard in shards):
        return
    inputs = cell.model.inputs[cell.artifact.task]
    numbers = [
        ledger.store.read(_path(cell, unit), KNOCKOUTS, ["explained"])["explained"].to_pylist() for unit in units
    ]
    known = [bool(np.isfinite(own).all()) for part in numbers for own in part]
    rejects = {NO_RELEVANCE: sum(len(unit.rows) for unit in units) - len(known), "not_finite": known.count(False)}
    record = {
        "shards": shards,
        "neurons": cell.neurons and cell.neurons.name,
        "means": cell.means and cell.means.name,
        "samples": known.count(True),
        "rejects": {reason: count for reason, count in rejects.items() if count},
        "model": {"identity": cell.model.resolved.identity, "id": cell.model.resolved.config.id},
        "inputs": {"tokenizer": inputs.tokenizer, "sha256": inputs.digest},
    }
    ledger.commit(cell.artifact, record, config=config.model_dump(mode="json"), sizes=present)
