"""The plan of a run: the cells it wants, each with a key of all that decides its numbers.

A cell is the relevance of one method (of tokens, heads, layers, neurons or labels) for a model, task and precision. Its
key covers the model's weights, the tokenised inputs, the method with its version, the precision and the options that
change numbers. Equal keys mean equal numbers, so a run computes only the cells that it wants and that are not done.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product as combinations
from typing import Any

import pyarrow as pa

from closelook.evaluation.schema import CURVES, RELEVANCE, RELEVANCE_DOUBLE, TRIALS, titled
from closelook.jobs.config import ModelConfig, RunConfig, configured, defined_options, left_open
from closelook.jobs.config.known import check
from closelook.jobs.plan.checkpoints import ModelUnavailable
from closelook.jobs.plan.choices import Tried, choice_of, curve_settings, first_way
from closelook.jobs.plan.corpus import check_models
from closelook.jobs.plan.finer import KEPT
from closelook.jobs.plan.inputs import Inputs, read_inputs
from closelook.jobs.plan.models import Reading, ResolvedModel, load_tokenizer, reading_of, resolve
from closelook.jobs.plan.node import Cell, Choice, ModelPlan, Plan
from closelook.jobs.plan.taken import check_taken, tasks_of
from closelook.jobs.store import Artifact, Ledger, Store, views_of
from closelook.lrp_core.methods.record import Method
from closelook.lrp_core.records.capabilities import POSITIONS, Capability
from closelook.lrp_core.records.explained import versions
from closelook.lrp_core.records.kinds import MASK
from closelook.lrp_core.records.types import Request, UserError

VERSION = 3  # raised when the stored content of cells changes: cells of older versions are stale
_SCHEMAS = {"curves": CURVES, "trials": TRIALS, **{kept.name: kept.schema for kept in KEPT.values()}}

Defined = tuple[Method, Sequence[Mapping[str, Any]]]  # a method, and the sets of options it is tried under
Described = tuple[list[Any], str]  # the key of a method with its options, and the name of its pass
Asking = tuple[str, frozenset[Capability], str]  # a method's name, a model's capabilities, and a task


def validate(config: RunConfig) -> None:
    """Raises UserError for an unknown method or option, or a model that cannot exist, before anything is written."""
    check(config)
    taken: dict[str, list[str]] = {}
    for model in config.models:
        try:
            resolved = resolve(model, config.seed)
        except ModelUnavailable:
            taken[model.name] = config.tasks_for(model)  # the plan lists this model among its failures
            continue
        if config.neurons is not None:
            check_models(config, resolved)
        tasks = taken[model.name] = tasks_of(config, resolved)
        drawn = config.perturb is not None and any(config.perturb.takes(task=task) for task in tasks)
        if drawn or any(map(left_open, config.methods_of(model))):
            settings = curve_settings(config)
            first_way(resolved, settings.area_ways)
            flips = settings.flips_of(resolved.kind, resolved.output, config.seed)
            if any(curve_set.way == MASK for curve_set in flips):
                _check_mask(model)
    check_taken(config, taken)


def _check_mask(model: ModelConfig) -> None:
    """Raises UserError if the model's tokenizer has no mask token; a model out of reach now is not checked."""
    try:
        mask_id = load_tokenizer(model).mask_token_id
    except ModelUnavailable:
        return
    if mask_id is None:
        raise UserError(
            f"config key 'perturb.ways': the tokenizer of {model.name} has no mask token: name other ways, as [zero]"
        )


def make_plan(config: RunConfig, store: Store, ledger: Ledger | None = None) -> Plan:
    """The plan of `config` over the views in `store`; `ledger` is that of the store, if it is already open.

    Raises UserError for a method or model that cannot exist, and for gold labels that a classifier does not have.
    """
    methods, ledger = configured(config), ledger or Ledger(store)
    described: dict[tuple[str, str], Described] = {}
    asked: dict[Asking, tuple[Request, ...]] = {}
    models, failures, undefined, unprepared = [], {}, [], []
    inputs: dict[tuple[str, str], Inputs | None] = {}
    for model in config.models:
        try:
            resolved = resolve(model, config.seed)
            reading = reading_of(resolved)
        except ModelUnavailable as error:
            failures[model.name] = str(error)
            continue
        defined: list[Defined] = []
        for entry in config.methods_of(model):
            info = methods[entry.name]
            options = defined_options(info, entry, resolved.capabilities)
            if options:
                defined.append((info, options))
            else:
                undefined.append((model.name, info.name))
        of_task, tasks = {}, tasks_of(config, resolved)
        for task in tasks:
            if (reading.key, task) not in inputs:
                inputs[reading.key, task] = read_inputs(ledger, reading.key, task)
            views = inputs[reading.key, task]
            if views is None:
                unprepared.append((model.name, task))
            else:
                resolved.label_ids(views.labels)  # raises for a gold label that the model does not have
                of_task[task] = views
        cells_of_model = _Wanted(config, resolved, of_task, defined, described, asked)
        choices = tuple(cells_of_model.choices(reading, ledger))
        cells = tuple(cells_of_model.cells(choices))
        models.append(ModelPlan(resolved, of_task, cells, choices, tuple(tasks), reading))
    return Plan(tuple(models), failures, tuple(undefined), tuple(unprepared))


def without_samples(plan: Plan, ledger: Ledger) -> dict[tuple[str, str], dict[str, int]]:
    """(model, task) where no sample fits the model's tokenizer, each with the counts of rejects by reason."""
    without: dict[tuple[str, str], dict[str, int]] = {}
    for model in plan.models:
        for task, views in model.inputs.items():
            if not views.rows:
                record = ledger.latest(views_of(views.tokenizer, task)) or {}
                without[model.name, task] = record.get("rejects", {})
    return without


@dataclass(frozen=True)
class _Wanted:
    """Lists the cells and choices that a run wants of one model."""

    config: RunConfig
    resolved: ResolvedModel
    inputs: Mapping[str, Inputs]  # by task
    methods: Sequence[Defined]
    described: dict[tuple[str, str], Described]  # of all models, by the method's name and its options as text
    asked: dict[Asking, tuple[Request, ...]]  # of all models, the configured variants, the same for every precision

    @cached_property
    def capabilities(self) -> frozenset[Capability]:
        return self.resolved.capabilities

    def _requests_of(self, method: Method, task: str) -> tuple[Request, ...]:
        """The requests of a method on a task (see `requests_of`), cached for all models."""
        asking = method.name, self.capabilities, task
        if asking not in self.asked:
            self.asked[asking] = requests_of(self.config, method, self.capabilities, task)
        return self.asked[asking]

    def _described(self, method: Method, options: Mapping[str, Any]) -> Described:
        """The key of a method with these options, and the name of its pass, cached for all models."""
        name = method.name, repr(options)
        if name not in self.described:
            tried = method.configured(**options)
            self.described[name] = tried.key(), tried.pass_name
        return self.described[name]

    def choices(self, reading: Reading, ledger: Ledger) -> Iterator[Choice]:
        """Yield a choice for each task with samples, precision and method that has several sets of options."""
        for tried in self._tried():
            views = self.inputs[tried.task]
            if len(tried.options) > 1 and views.rows:
                requests = self._requests_of(tried.method, tried.task)
                yield choice_of(self.config, self.resolved, reading, views, tried, requests, ledger)

    def cells(self, choices: Sequence[Choice]) -> Iterator[Cell]:
        """Yield the cells of all tasks, precisions and methods whose options are known: given, or already chosen."""
        chosen = {(c.artifact.task, c.artifact.dtype, c.artifact.method): c.chosen for c in choices}
        for task, dtype, method, options in self._tried():
            known = chosen.get((task, dtype, method.name), options[0])
            if known is not None:
                artifact = Artifact("relevance", self.resolved.config.name, task, dtype, method.name)
                yield from self._of_method(artifact, method, known)

    def _tried(self) -> Iterator[Tried]:
        """Yield each method with its sets of options, for the precisions of each task that it can explain."""
        for task in self.inputs:
            methods = [defined for defined in self.methods if explains(self.config, defined[0], task)]
            for dtype, defined in combinations(self.resolved.config.dtypes_for(task), methods):
                yield Tried(task, dtype, *defined)

    def _of_method(self, artifact: Artifact, method: Method, options: Mapping[str, Any]) -> Iterator[Cell]:
        """Yield the cells of a method for one task and precision."""
        resolved = self.resolved
        requests = self._requests_of(method, artifact.task)
        yield self._cell(artifact, method, options, requests)
        if artifact.dtype != resolved.config.first_dtype(artifact.task):
            return
        first = requests[0].embedding
        alike = tuple(request for request in requests if request.embedding == first)
        for kept in KEPT.values():
            of_product = kept.requests(method, resolved, alike)
            if of_product and artifact.task in self.config.finer(kept.name):
                yield self._cell(replace(artifact, product=kept.name), method, options, of_product)

    def _cell(
        self, artifact: Artifact, info: Method, options: Mapping[str, Any], requests: tuple[Request, ...]
    ) -> Cell:
        """The cell of a method at the place of `artifact`, with its key. `requests` are the variants that it holds."""
        config, resolved, views = self.config, self.resolved, self.inputs[artifact.task]
        is_whole = artifact.product == "relevance"
        size = None if is_whole else config.finer(artifact.product)[artifact.task]
        rows = views.rows if is_whole else len(views.subset(size, config.seed))
        method, pass_name = self._described(info, options)
        key_fields: dict[str, Any] = dict(
            product=artifact.product,
            version=VERSION,
            schema=titled(schema_of(artifact.product, artifact.dtype)),
            **resolved.key_fields,
            tokenizer=views.tokenizer,
            inputs=views.digest,
            task=views.task,
            dtype=artifact.dtype,
            method=method,
            variants=list(dict.fromkeys(request.variant for request in requests)),
            seed=config.seed if not is_whole or info.seeded else None,
            rows=rows,
            **versions(request.explanation for request in requests),
        )
        return Cell(
            artifact=artifact,
            key_fields=key_fields,
            samples=rows,
            forwards=pass_name,
            requests=requests,
            chosen=options,
        )


def explains(config: RunConfig, info: Method, task: str) -> bool:
    """True if the method gives relevance of tokens and, for a task that explains whole answers, can explain spans."""
    return "tokens" in info.given and (bool(info.spans) or not config.task(task).explains_answers)


def requests_of(
    config: RunConfig, info: Method, capabilities: Collection[Capability] = (POSITIONS,), task: str | None = None
) -> tuple[Request, ...]:
    """The configured variants (explanation, embedding) that the method has for a model with these capabilities.

    Where the method has none of the configured ones, its first explanation or embedding is taken. A `task` with
    explanations of its own replaces the config's.
    """
    preferred = (None if task is None else config.task(task).explained) or config.explanations
    explanations = [e for e in info.explanations if e in preferred] or info.explanations[:1]
    known = info.embeddings_of(capabilities)
    embeddings = [e for e in known if e in config.embeddings] or known[:1]
    return tuple(Request(info.name, *variant) for variant in combinations(explanations, embeddings))


def forwards(config: RunConfig, info: Method, length: float) -> float:
    """The number of forward passes that a sample of `length` tokens costs under a method; a backward counts as one."""
    numbers = len({request.explanation for request in requests_of(config, info)})
    return info.cost(length, numbers) + (0 if info.rules is None else numbers)


def schema_of(product: str, dtype: str) -> pa.Schema:
    """The schema of the shards of a cell, of faithfulness curves or of trials."""
    return _SCHEMAS.get(product, RELEVANCE_DOUBLE if dtype == "float64" else RELEVANCE)
