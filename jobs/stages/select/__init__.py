"""Select: of the options that a config's lists leave open, the most faithful, one pool of workers a model.

Every method with lists is tried under all its sets of options on a few samples of each task: the largest mean area
difference wins (AttnLRP 4.1 and B.2). Trials are kept, and cells of later stages have what was chosen in their keys.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from evaluation.schema import TRIALS
from evaluation.scoring.trials import choose, trials_of
from jobs.cluster.scheduler import Report, Work, run_all
from jobs.config import RunConfig
from jobs.methods import configured
from jobs.plan.cells import ModelPlan, PlannedCell, make_plan
from jobs.plan.choices import Choice, in_words
from jobs.plan.units import FORWARD_FACTOR, Unit, cut_units
from jobs.stages.attribute import by_error
from jobs.stages.attribute.manifests import complete_cell, completed_units
from jobs.stages.attribute.worker import UnitTask, WorkerOptions
from jobs.stages.perturb import UNIT_TOKENS, check_flippable, forward_tokens
from jobs.stages.select.worker import MethodTrials, Selector, TrialsTask
from jobs.stages.summary import StageSummary
from jobs.store import Artifact, Ledger, Store


def select(config: RunConfig, store: Store) -> StageSummary:
    """Make every choice that is not made yet. Raises UserError for a task none of whose tokens may be flipped."""
    plan, ledger = make_plan(config, store), Ledger(store)
    wanted, todo = [choice for model in plan.models for choice in model.choices], plan.undecided
    for choice in todo:
        ledger.discard_damaged(choice.artifact)
    failures = list(plan.failures.values())
    failures += [f"{model}: {task} is not prepared: run `closelook prepare`" for model, task in plan.unprepared]
    works = [
        _Selecting(config, ledger, model, dtypes).work()
        for model in plan.models
        for dtypes in config.together(choice.artifact.dtype for choice in _open(model))
    ]
    failures += run_all(config, store, works, stage="select", unit="samples")
    made = [(choice, record) for choice in todo if (record := ledger.record(choice.artifact)) and "chosen" in record]
    lines = [f"{len(made)} choices made, {len(wanted) - len(todo)} were up to date"]
    lines += [f"{choice}: {_told(choice, record)}" for choice, record in made]
    return StageSummary("select", len(made), len(wanted) - len(todo), tuple(dict.fromkeys(failures)), tuple(lines))


def _open(model: ModelPlan) -> list[Choice]:
    return [choice for choice in model.choices if choice.chosen is None]


def _told(choice: Choice, record: Mapping[str, Any]) -> str:
    best = record["trials"][record["chosen"]]
    on = "no sample has curves" if not best["n"] else f"ΔA {best['delta_area']:.3g} on {best['n']} samples"
    return f"{in_words(choice.options[record['chosen']])} of {len(record['trials'])} trials ({on})"


class _Selecting:
    """A model's open choices while their units are computed: what reports say of them, and how they are closed.

    Those of precisions that share workers; with other precisions, others see to them.
    """

    def __init__(self, config: RunConfig, ledger: Ledger, model: ModelPlan, dtypes: tuple[str, ...]) -> None:
        self._config, self._ledger, self._model, self._dtypes = config, ledger, model, dtypes
        self._failed: dict[Artifact, str] = {}  # trials, each with its first error
        self._splits = 0
        self._units: list[tuple[Choice, list[Unit]]] = []

    def work(self) -> Work:
        """What the scheduler runs. Raises UserError for a task none of whose tokens may be flipped."""
        resolved, blocks = self._model.resolved, []
        groups: dict[tuple[str, str], list[Choice]] = defaultdict(list)
        for choice in _open(self._model):
            if choice.artifact.dtype in self._dtypes:
                groups[choice.artifact.dtype, choice.artifact.task].append(choice)
        for place in sorted(groups):  # one precision after another
            blocks += list(self._blocks(groups[place]))
        return Work(
            name=self._config.pool_name(resolved.config, self._dtypes),
            model=resolved.config,
            blocks=[block for block, _ in blocks],
            worker=Selector,
            arguments=(self._ledger.store, resolved, WorkerOptions.of(self._config, resolved.config)),
            size=sum(size for _, size in blocks),
            dtypes=self._dtypes,
            on_report=self._add,
            on_end=self._close,
        )

    def _blocks(self, choices: Sequence[Choice]) -> Iterator[tuple[Callable[[], pa.Table], int]]:
        """(what makes its table, samples) of each unit that some of the choices of one task and precision lack.

        All of the choices are tried, also those that have the unit: a unit tried again gives what it gave.
        """
        first, model = choices[0], self._model
        inputs = model.inputs[first.artifact.task]
        check_flippable((first.flips,), model, inputs, first.rows)
        units = self._cut(first.artifact, first.rows)
        self._units += [(choice, units) for choice in choices]
        done = [completed_units(self._ledger, choice.artifact, units) for choice in choices]
        for unit in units:
            if not all(unit.name in names for names in done):
                task = self._task(unit, choices)
                yield partial(inputs.unit, task, unit.rows), len(unit.rows)

    def _cut(self, place: Artifact, rows: np.ndarray) -> list[Unit]:
        """The samples in units, the same whichever of the choices of a task and precision are open."""
        inputs = self._model.inputs[place.task]
        every = [c for c in self._model.choices if (c.artifact.task, c.artifact.dtype) == (place.task, place.dtype)]
        tokens = forward_tokens(inputs, (every[0].flips,))[rows].max(initial=1) * sum(len(c.options) for c in every)
        size = max(1, min(self._config.shard_rows, UNIT_TOKENS // int(tokens)))
        return cut_units(inputs, rows.tolist(), self._budget, size)

    @property
    def _budget(self) -> int:
        return self._model.resolved.config.token_budget or self._config.token_budget

    def _task(self, unit: Unit, choices: Sequence[Choice]) -> TrialsTask:
        first = choices[0]
        at = first.artifact
        tuned = [
            (name, c.artifact.method, options)
            for c in choices
            for name, options in zip(_trials(c), c.options, strict=True)
        ]
        cells = tuple(
            (replace(c.artifact, method=name), (replace(c.request, method=name),))
            for c in choices
            for name in _trials(c)
        )
        methods = tuple(
            MethodTrials(c.artifact, _trials(c), f"{c.artifact.folder}/{c.artifact.shard(unit.name)}") for c in choices
        )
        each = forward_tokens(self._model.inputs[at.task], (first.flips,))[list(unit.rows)].sum()
        return TrialsTask(
            UnitTask(unit.name, at.product, at.model, at.task, at.dtype, unit.cuts, cells, tuple(tuned)),
            methods,
            first.flips,
            FORWARD_FACTOR * self._budget,
            int(each) * len(tuned),
        )

    def _add(self, report: Report) -> None:
        self._splits += report["splits"]
        for cell, why in json.loads(report["result"] or "[]"):
            self._failed.setdefault(Artifact(**cell), why)

    def _close(self) -> Iterator[str]:
        """Close the choices whose trials are complete. Yields the failures of trials and of choices."""
        yield from by_error(self._model.name, self._failed)
        for choice, units in self._units:
            planned = PlannedCell(choice.artifact, (choice.request,), len(choice.rows))
            conclusion = partial(self._conclude, choice)
            why = complete_cell(self._config, self._ledger, self._model, planned, units, self._splits, conclusion)
            if why is not None:
                yield why

    def _conclude(self, choice: Choice, shards: Sequence[str]) -> dict[str, Any]:
        """What the manifest says of the trials: each with its mean and samples, and which is chosen."""
        table = self._ledger.store.read(list(shards), TRIALS) if shards else TRIALS.empty_table()
        table = table.sort_by("sample_id")  # a mean does not depend on how samples were cut into units
        areas = (
            np.array(table[name].to_pylist(), float).reshape(-1, len(choice.options))
            for name in ("area_morf", "area_lerf")
        )
        tried = trials_of(*areas)
        chosen = choose(tried)
        trials = [
            asdict(trial) | {"options": options, "left_out": len(choice.rows) - trial.n}
            for trial, options in zip(tried, choice.options, strict=True)
        ]
        for trial in trials:
            trial["delta_area"] = trial["delta_area"] if trial["n"] else None
        method = configured(self._config)[choice.artifact.method].configured(**choice.options[chosen])
        return {"trials": trials, "chosen": chosen, "method": method.key()}


def _trials(choice: Choice) -> tuple[str, ...]:
    """Names of methods under which workers know the trials."""
    return tuple(f"{choice.artifact.method}({in_words(options)})" for options in choice.options)
