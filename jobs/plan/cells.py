"""The plan of a run: the cells it wants, keyed by all that decides their numbers.

A cell, the relevance of one method (or that of its heads) for a model, task and precision, is the unit of bookkeeping.
Its key covers the model's weights, the tokenised inputs, the method with its version, the precision and the options
that change numbers. Equal keys mean equal numbers, so a run computes exactly the wanted cells that are not done.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product as combinations
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from evaluation.schema import CURVES, HEADS, LABELS, LAYERS, NEURONS, RELEVANCE, RELEVANCE_DOUBLE, TRIALS, titled
from jobs.config import ModelConfig, RunConfig
from jobs.config.known import check
from jobs.config.methods import configured, defined_options, left_open
from jobs.plan.checkpoints import ModelUnavailable
from jobs.plan.choices import choice_of, curve_settings, first_way
from jobs.plan.corpus import check_models
from jobs.plan.inputs import Inputs, read_inputs
from jobs.plan.models import ResolvedModel, load_tokenizer, reading_of, resolve
from jobs.plan.node import Cell, Choice, ModelPlan, Plan
from jobs.plan.taken import check_taken, tasks_of
from jobs.store import Artifact, Ledger, Store
from jobs.store.artifacts import views_of
from lrp_core.capabilities import POSITIONS, Capability
from lrp_core.explained import TARGET, versions
from lrp_core.kinds import MASK
from lrp_core.method import FINER, Method
from lrp_core.types import Request, UnsupportedModel, UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PRODUCTS = ("heads", "layers", "neurons")  # that cells beside relevance of tokens hold
VERSION = 3  # raised when what is stored of a cell changes: cells of older versions are stale


def validate(config: RunConfig) -> None:
    """Raises UserError for an unknown method or option or a model that cannot exist, before anything is written."""
    check(config)
    taken: dict[str, list[str]] = {}
    for model in config.models:
        try:
            resolved = resolve(model, config.seed)
        except ModelUnavailable:
            taken[model.name] = config.tasks_for(model)  # its own cells fail later
            continue
        if config.neurons is not None:
            check_models(config, resolved)
        tasks = taken[model.name] = tasks_of(config, resolved)
        drawn = config.perturb is not None and set(tasks) & set(config.perturb.tasks or tasks)
        if drawn or any(map(left_open, config.methods_of(model))):
            settings = curve_settings(config)
            first_way(resolved, settings.area_ways)
            flips = settings.flips_of(resolved.kind, resolved.output, config.seed)
            if any(one.way == MASK for one in flips):
                _check_mask(model)
    check_taken(config, taken)


def _check_mask(model: ModelConfig) -> None:
    """Raises UserError where the model's tokenizer has no mask token; one that is out of reach waits for its turn."""
    try:
        mask_id = load_tokenizer(model).mask_token_id
    except ModelUnavailable:
        return
    if mask_id is None:
        raise UserError(
            f"config key 'perturb.ways': the tokenizer of {model.name} has no mask token: name other ways, as [zero]"
        )


def make_plan(config: RunConfig, store: Store) -> Plan:
    """The wanted cells of `config` over the views that `store` holds.

    Raises UserError for a method or model that cannot exist, and for gold labels that a classifier does not have.
    """
    methods, ledger = configured(config), Ledger(store)
    models, failures, undefined, unprepared = [], {}, [], []
    inputs: dict[tuple[str, str], Inputs | None] = {}
    for model in config.models:
        try:
            resolved = resolve(model, config.seed)
            tokenizer, reading = reading_of(resolved)
        except ModelUnavailable as error:
            failures[model.name] = str(error)
            continue
        except UnsupportedModel as error:
            if not config.lacking:
                raise
            lost = any(line.endswith(f" of model {model.name!r}") for line in config.lacking)
            why = " is of a family that no installed package brings" if lost else f": {error}"
            failures[model.name] = f"model {model.name}{why}"
            continue
        defined: list[Tried] = []
        for entry in config.methods_of(model):
            info = methods[entry.name]
            options = defined_options(info, entry, resolved.capabilities)
            if options:
                defined.append((info, options))
            else:
                undefined.append((model.name, info.name))
        of_task, tasks = {}, tasks_of(config, resolved)
        for task in tasks:
            if (tokenizer, task) not in inputs:
                inputs[tokenizer, task] = read_inputs(ledger, tokenizer, task)
            views = inputs[tokenizer, task]
            if views is None:
                unprepared.append((model.name, task))
            else:
                resolved.label_ids(views.labels)  # a gold label without a counterpart ends the run before it computes
                of_task[task] = views
        wanted = _Wanted(config, resolved, of_task, defined)
        choices = tuple(wanted.choices(reading, ledger))
        cells = tuple(wanted.cells(choices))
        models.append(ModelPlan(resolved, of_task, cells, choices, tuple(tasks), tokenizer))
    return Plan(tuple(models), failures, tuple(undefined), tuple(unprepared))


def without_samples(plan: Plan, ledger: Ledger) -> dict[tuple[str, str], dict[str, int]]:
    """(model, task) where no sample fits the tokenizer, with what its view rejected, by reason."""
    return {
        (model.name, task): (ledger.latest(views_of(views.tokenizer, task)) or {}).get("rejects", {})
        for model in plan.models
        for task, views in model.inputs.items()
        if not views.table.num_rows
    }


Tried = tuple[Method, Sequence[Mapping[str, Any]]]  # a method, and the sets of options it is tried under


@dataclass(frozen=True)
class _Wanted:
    """All that a run wants of one model."""

    config: RunConfig
    resolved: ResolvedModel
    inputs: Mapping[str, Inputs]  # by task
    methods: Sequence[Tried]

    def choices(self, tokenizer: PreTrainedTokenizerBase | None, ledger: Ledger) -> Iterator[Choice]:
        """A choice for each task, precision and method that has several sets of options."""
        for task, views in self.inputs.items():
            for dtype, (method, options) in combinations(self.resolved.config.dtypes_for(task), self.methods):
                if len(options) > 1:
                    requests = requests_of(self.config, method, self.resolved.capabilities)
                    yield choice_of(
                        self.config, self.resolved, views, dtype, method, options, requests, tokenizer, ledger
                    )

    def cells(self, choices: Sequence[Choice]) -> Iterator[Cell]:
        """The cells of all tasks, precisions and methods whose options are known."""
        chosen = {(c.artifact.task, c.artifact.dtype, c.artifact.method): c.chosen for c in choices}
        for task in self.inputs:
            for dtype, (method, options) in combinations(self.resolved.config.dtypes_for(task), self.methods):
                known = chosen.get((task, dtype, method.name), options[0])
                if known is not None:
                    place = Artifact("relevance", self.resolved.config.name, task, dtype, method.name)
                    yield from self._of_method(place, method, known)

    def _of_method(self, place: Artifact, method: Method, options: Mapping[str, Any]) -> Iterator[Cell]:
        """The relevance of a method in one precision of a task; in the first precision, finer relevance beside it."""
        resolved = self.resolved
        requests = requests_of(self.config, method, resolved.capabilities)
        yield self._cell(place, method, options, requests)
        if place.dtype != resolved.config.dtypes_for(place.task)[0]:
            return
        first = requests[0].embedding
        alike = tuple(request for request in requests if request.embedding == first)
        finer = {"labels": labels_of(method, resolved, first)}
        finer |= dict.fromkeys(finer_products(method, resolved.capabilities), alike)
        for product, of_product in finer.items():
            if of_product and place.task in self.config.finer(product):
                yield self._cell(replace(place, product=product), method, options, of_product)

    def _cell(self, place: Artifact, info: Method, options: Mapping[str, Any], requests: tuple[Request, ...]) -> Cell:
        config, resolved, views = self.config, self.resolved, self.inputs[place.task]
        is_whole = place.product == "relevance"
        size = None if is_whole else config.finer(place.product)[place.task]
        rows = views.table.num_rows if is_whole else len(views.subset(size, config.seed))
        method = info.configured(**options)
        key_fields: dict[str, Any] = dict(
            product=place.product,
            version=VERSION,
            schema=titled(schema_of(place.product, place.dtype)),
            model=resolved.identity,
            tokenizer=views.tokenizer,
            inputs=views.digest,
            task=views.task,
            dtype=place.dtype,
            method=method.key(),
            variants=list(map(list, dict.fromkeys((request.explanation, request.embedding) for request in requests))),
            attention=resolved.config.attn,
            seed=config.seed if not is_whole or info.seeded else None,
            rows=rows,
            **versions(request.explanation for request in requests),
        )
        return Cell(
            artifact=place,
            key_fields=key_fields,
            samples=rows,
            forwards=method.pass_name,
            requests=requests,
            chosen=options,
        )


def finer_products(info: Method, capabilities: Collection[Capability]) -> list[str]:
    """The finer products that the method gives of such a model: `heads`, `layers`, `neurons`."""
    return [one for one in PRODUCTS if one in info.gives and set(FINER[one][1]) <= set(capabilities)]


def labels_of(info: Method, resolved: ResolvedModel, embedding: str) -> tuple[Request, ...]:
    """A request for each label of a classifier; none of a method that says the same whatever is explained."""
    if resolved.output != "label" or TARGET.name not in info.explanations:
        return ()
    return tuple(Request(info.name, TARGET.name, embedding, label=at) for at in range(len(resolved.labels)))


def requests_of(
    config: RunConfig, info: Method, capabilities: Collection[Capability] = (POSITIONS,)
) -> tuple[Request, ...]:
    """The configured variants that the method knows of such a model; its own single variant where it has no choice."""
    explanations = [e for e in info.explanations if e in config.explanations] or info.explanations[:1]
    known = info.embeddings_of(capabilities)
    embeddings = [e for e in known if e in config.embeddings] or known[:1]
    return tuple(Request(info.name, *variant) for variant in combinations(explanations, embeddings))


_OWN = {"heads": HEADS, "layers": LAYERS, "labels": LABELS, "neurons": NEURONS, "curves": CURVES, "trials": TRIALS}


def schema_of(product: str, dtype: str) -> pa.Schema:
    """The schema of a cell's shards."""
    return _OWN.get(product, RELEVANCE_DOUBLE if dtype == "float64" else RELEVANCE)
