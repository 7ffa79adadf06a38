"""Estimates the cost of parts of a run: choices among options, finer relevance, deletion and insertion curves.

Costs are estimated for every task of every model, from measured seconds or from the model's geometry and the speed of
the GPUs. They are upper bounds: states of a text that several curves share are counted for each curve.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from closelook.jobs.cluster.slots import FLOAT64, SLOW, in_words, known, matches, share_of
from closelook.jobs.config import (
    ModelConfig,
    NodesConfig,
    PerturbConfig,
    RunConfig,
    SelectConfig,
    configured,
    defined_options,
)
from closelook.jobs.geometries import geometry_of
from closelook.jobs.plan.cells import requests_of
from closelook.jobs.plan.choices import curve_settings
from closelook.jobs.plan.forwards import Chosen, forwards, forwards_of_labels, records
from closelook.jobs.plan.inputs import Inputs
from closelook.jobs.plan.node import Cell, ModelPlan, Plan
from closelook.jobs.plan.units import LABELS_PASS
from closelook.jobs.products.curves import CURVES, curves_of
from closelook.jobs.products.record import Product
from closelook.jobs.store import Ledger
from closelook.lrp_core.methods.record import Method
from closelook.lrp_core.records.capabilities import Capability
from closelook.lrp_core.records.kinds import MASKED

Measured = Mapping[tuple[str, str, str], float]  # seconds per token, by model, precision and pass
#: Assumed operations per second that one 80 GB accelerator sustains; `closelook plan` prints the assumption.
FLOPS = {"bfloat16": 1.5e14, "float16": 1.5e14, "float32": 2e13, "float64": 1e13}
SLOW_FLOAT64 = FLOPS["float32"] / 64  # of GPUs with slow float64, such as an L4: 1 float64 unit to 64 of float32


def flops_of(nodes: NodesConfig, dtype: str) -> float:
    """The operations per second that a GPU of these nodes sustains: as configured (`tflops`), or as assumed."""
    configured: Mapping[Any, float] = nodes.tflops
    if dtype in configured:
        return 1e12 * configured[dtype]
    is_slow = dtype == FLOAT64 and known(nodes.labels).get(FLOAT64) == SLOW
    return SLOW_FLOAT64 if is_slow else FLOPS[dtype]


def speed(config: RunConfig, model: ModelConfig, dtype: str) -> float | None:
    """The operations per second of one GPU for the model in this precision; None if no node can hold a worker.

    It is the mean over all suitable GPUs, since they share the units. Without GPUs in `ray.nodes`, or with `device:
    cpu`, it is the speed that FLOPS assumes for one 80 GB accelerator.
    """
    nodes = [kind for kind in config.ray.nodes or () if kind.gpus]
    if not nodes or config.device == "cpu":
        return FLOPS[dtype]
    share = share_of(model, on_gpu=True, needs=config.ray.needs((dtype,)))
    gpus = flops = 0.0
    for kind in nodes:
        if kind.gpus >= share.gpus and matches(known(kind.labels), share.labels):
            gpus += kind.count * kind.gpus
            flops += kind.count * kind.gpus * flops_of(kind, dtype)
    return flops / gpus if gpus else None


def without_nodes(config: RunConfig) -> Iterator[str]:
    """A line for each model and precision for which none of `ray.nodes` is suitable."""
    for model in config.models:
        dtypes = {dtype for task in config.tasks_for(model) for dtype in model.dtypes_for(task)}
        for dtype in sorted(dtypes):
            if speed(config, model, dtype) is None:
                labels = in_words(share_of(model, on_gpu=True, needs=config.ray.needs((dtype,))).labels)
                needs = f"{model.gpus:g} GPU" + (f" and {labels}" if labels else "")
                yield f"model {model.name} in {dtype}: none of ray.nodes has {needs}"


@dataclass(frozen=True)
class Cost:
    """The cost of one part of a run."""

    cells: int
    missing: int  # cells that are not computed yet
    forwards: int  # forward passes of one sample for the missing cells
    seconds: float | None  # for the missing cells, on one device; None if unknown
    trials: int = 0  # sets of options that a choice tries


def total(costs: Iterable[Cost]) -> Cost:
    """The sum of costs. Its seconds are None if those of one cost are."""
    cells = missing = forwards = trials = 0
    seconds: float | None = 0.0
    for cost in costs:
        cells += cost.cells
        missing += cost.missing
        forwards += cost.forwards
        trials += cost.trials
        seconds = None if seconds is None or cost.seconds is None else seconds + cost.seconds
    return Cost(cells, missing, forwards, seconds, trials)


@dataclass(frozen=True)
class Basis:
    """The basis of estimates: a run, its artifacts and plan, and measured seconds per token."""

    config: RunConfig
    ledger: Ledger
    plan: Plan
    measured: Measured

    def subjects(self) -> Iterator[Subject]:
        """Every task of every model, in the order of the config."""
        for model in self.config.models:
            model_plan = self.plan.by_name.get(model.name)
            methods = defined(self.config, model, model_plan)
            for task in self.plan.tasks_of(self.config, model):
                yield Subject(self, model, model_plan, task, methods)


@dataclass(frozen=True)
class Subject:
    """A task of a model, for which costs are estimated."""

    basis: Basis
    model: ModelConfig
    planned: ModelPlan | None  # None if the model cannot be loaded
    task: str
    methods: list[str]  # that apply to the model

    @property
    def inputs(self) -> Inputs | None:
        """The samples of the task as the model reads them; None before they are prepared."""
        return None if self.planned is None else self.planned.inputs.get(self.task)

    @property
    def is_unread(self) -> bool:
        """True if it is unknown how many samples there are: they are the user's own, and not prepared."""
        return self.inputs is None and not self.basis.config.task(self.task).published[0]

    def lengths(self, samples: int | None = None, draw: int | str = 0) -> np.ndarray:
        """The number of tokens [N] of each sample of the task, or of the `samples` that the seed `draw` selects.

        Before samples are prepared, as many as the task has published, each of the published mean length.
        """
        if self.inputs is not None:
            return self.inputs.lengths[self.inputs.subset(samples, draw)]
        config = self.basis.config
        published, length = config.task(self.task).published
        limits = (config.tasks[self.task].limit, samples)
        return np.full(min([published, *(limit for limit in limits if limit is not None)]), length)

    @property
    def cells(self) -> list[Cell]:
        """The planned cells of the task, in all precisions; [] before its samples are prepared."""
        return [cell for cell in self.planned.cells if cell.artifact.task == self.task] if self.planned else []

    def waiting(self, dtype: str) -> list[str]:
        """The methods whose cells have no keys yet: before samples are prepared all, then those with open options."""
        if self.planned is None or self.inputs is None:
            return self.methods
        undecided = [choice.artifact for choice in self.planned.choices if choice.chosen is None]
        return [cell.method for cell in undecided if (cell.task, cell.dtype) == (self.task, dtype)]

    def seconds(self, dtype: str, tokens: int) -> float | None:
        """The seconds of forward passes over `tokens` tokens: by the cheapest measured pass, else by the geometry.

        Even the cheapest pass has at least one forward, so this is an upper bound. None if neither is known, or if the
        samples are not.
        """
        if self.is_unread:
            return None
        key, measured = (self.model.name, dtype), self.basis.measured
        rates = [rate for (model, precision, _), rate in measured.items() if (model, precision) == key]
        return tokens * min(rates) if rates else self._by_geometry(dtype, tokens)

    def seconds_of(
        self, methods: Sequence[Method], dtype: str, tokens: int, forwards: float, suffix: str = ""
    ) -> tuple[float | None, bool]:
        """(seconds of the methods' passes over `tokens` tokens, True if every pass was measured on this model).

        If not all were measured, the seconds are those of `forwards` forward passes by the geometry, None if it is
        unknown, or if the samples are. `suffix` is added to the names of the passes.
        """
        if self.is_unread:
            return None, False
        passes = {(self.model.name, dtype, f"{method.pass_name}{suffix}") for method in methods}
        rates = [rate for key, rate in self.basis.measured.items() if key in passes]
        if len(rates) == len(passes):
            return tokens * sum(rates), True
        return self._by_geometry(dtype, tokens * forwards), False

    def _by_geometry(self, dtype: str, tokens: float) -> float | None:
        """The seconds of a forward pass over `tokens` tokens by its geometry: 2 operations per weight and token.

        None if the geometry is unknown or no node can hold the model.
        """
        geometry, flops = geometry_of(self.model.id, self.model.shape), speed(self.basis.config, self.model, dtype)
        if geometry is None or flops is None:
            return None
        return 2.0 * geometry.block_parameters * tokens / flops


def defined(config: RunConfig, model: ModelConfig, planned: ModelPlan | None) -> list[str]:
    """The names of the methods that apply to the model; of all methods if its family is unknown."""
    capabilities, methods = capabilities_of(model, planned), configured(config)
    entries = config.methods_of(model)
    return [entry.name for entry in entries if defined_options(methods[entry.name], entry, capabilities)]


def capabilities_of(model: ModelConfig, planned: ModelPlan | None) -> frozenset[Capability] | None:
    """The model's properties that methods may need; None if its family is not known from its plan or geometry."""
    if planned is not None:
        return planned.resolved.capabilities
    geometry = geometry_of(model.id, model.shape)
    return None if geometry is None else geometry.model_family.capabilities


def choice_costs(basis: Basis) -> Iterator[Cost]:
    """The cost of every choice among options, by model, task, precision and method."""
    config, known = basis.config, configured(basis.config)
    select = config.select or SelectConfig()
    for subject in basis.subjects():
        model, capabilities = subject.model, capabilities_of(subject.model, subject.planned)
        lengths = subject.lengths(select.samples, select.draw)
        steps = np.minimum(lengths, curve_settings(config).steps)
        for entry in config.methods_of(model):
            options = defined_options(known[entry.name], entry, capabilities)
            if len(options) < 2:
                continue
            trials = [known[entry.name].configured(**values) for values in options]
            # forwards to explain one variant of each trial; then the two ends that all curves share, and the other
            # points of the deletion and the insertion curve of each trial
            states = _forwards_of_trials(trials, lengths) + 2 + 2 * len(trials) * (steps - 1)
            for dtype in model.dtypes_for(subject.task):
                missing = entry.name in subject.waiting(dtype)
                count, tokens = (int(each.sum()) * missing for each in (states, states * lengths))
                yield Cost(1, int(missing), count, subject.seconds(dtype, tokens), len(trials))


def _forwards_of_trials(trials: Sequence[Method], lengths: np.ndarray) -> np.ndarray:
    """The forward passes [N] that explain each sample by one variant of every trial; `lengths` [N] are its tokens."""
    passes = ([trial.cost(length) + (trial.rules is not None) for trial in trials] for length in lengths.tolist())
    return np.array(list(map(sum, passes)))


def finer_costs(basis: Basis, product: Product) -> Iterator[Cost]:
    """The cost of the finer relevance `product` (of heads, layers, labels or neurons), by model, task and precision."""
    for subject in basis.subjects():
        expected = product.expected(basis.config, subject.model, subject.task, subject.methods)
        for dtype, cells in expected.items():
            if cells:
                yield _finer_cost(subject, product, dtype, cells)


def _finer_cost(subject: Subject, product: Product, dtype: str, cells: int) -> Cost:
    """The cost of the finer relevance `product` for a task of a model, of which there are `cells` cells."""
    config, task = subject.basis.config, subject.task
    missing = _missing_finer(subject, product, dtype)
    chosen = {name: options for name, options in missing.items() if options}
    lengths = subject.lengths(config.finer(product.name)[task], config.seed)
    length = float(lengths.mean()) if len(lengths) else 0.0
    methods = records(config, list(missing), length, chosen)
    if product.name == "labels":
        planned = subject.planned
        labels = config.task(task).labels if planned is None else planned.resolved.labels
        each, suffix = forwards_of_labels(methods, len(labels), length), LABELS_PASS
    else:
        each, suffix = forwards(config, list(missing), length, chosen, task), ""
    seconds, _ = subject.seconds_of(methods, dtype, int(lengths.sum()), each, suffix)
    return Cost(cells, len(missing), round(each * len(lengths)), seconds)


def _missing_finer(subject: Subject, product: Product, dtype: str) -> Chosen:
    """The methods whose cells of `product` are missing, with their chosen options; {} while these are not known."""
    config, ledger = subject.basis.config, subject.basis.ledger
    missing: dict[str, Mapping[str, Any]] = {}
    for name in subject.waiting(dtype):
        if product.expected(config, subject.model, subject.task, [name]).get(dtype):
            missing[name] = {}
    for planned in subject.cells:
        if planned.artifact.product == product.name and not ledger.is_done(planned.artifact):
            missing[planned.artifact.method] = planned.chosen
    return missing


def curves_costs(basis: Basis) -> Iterator[Cost]:
    """The cost of deletion and insertion curves, by model, task and precision."""
    config, settings = basis.config, basis.config.perturb
    if settings is None:
        return
    known = configured(config)
    for subject in basis.subjects():
        model, task = subject.model, subject.task
        for dtype, cells in CURVES.expected(config, model, task, subject.methods).items():
            missing = _missing_curves(subject, settings, dtype)
            requests = [request for name in missing for request in requests_of(config, known[name])]
            variants = sum(map(settings.asks, requests))
            lengths = subject.lengths(settings.samples, config.seed)
            states = np.zeros_like(lengths)
            # the kind of a model that cannot be loaded is not known: it is taken for a masked one
            kind = MASKED if subject.planned is None else subject.planned.resolved.kind
            for flips in settings.flips_of(kind, config.task(task).output, config.seed) if variants else ():
                states += flips.draws * (2 + variants * 2 * (flips.most_states(lengths) - 1))
            seconds = subject.seconds(dtype, int((states * lengths).sum()))
            yield Cost(cells, len(missing), int(states.sum()), seconds)


def _missing_curves(subject: Subject, settings: PerturbConfig, dtype: str) -> list[str]:
    """The methods whose curves for the task are missing."""
    basis, task, missing = subject.basis, subject.task, []
    if subject.planned is not None and subject.inputs is not None:
        for cell in curves_of(basis.config, settings, subject.planned):
            if cell.artifact.task == task and not basis.ledger.is_done(cell.artifact):
                missing.append(cell.artifact.method)
    return missing + [name for name in subject.waiting(dtype) if settings.takes(task=task, method=name)]
