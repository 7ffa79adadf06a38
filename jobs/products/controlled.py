"""Controls of methods: which methods, on which samples, and what they say of the tokens under any model.

Planted methods and the baseline are among the methods of every control.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from jobs.methods import METHODS, configured
from jobs.plan.cells import Cell, ModelPlan
from jobs.plan.inputs import Inputs
from jobs.plan.node import Node, Part, Run
from jobs.plan.units import NO_FOIL, cut_units
from jobs.products.record import Opened, Reject, Row, Unit
from jobs.store import Artifact
from lrp_core.explained import needs_foil, versions
from lrp_core.method import Method
from lrp_core.methods.planted_records import PLANTED
from lrp_core.types import Request

if TYPE_CHECKING:
    from jobs.config import ModelConfig, RunConfig
    from jobs.config.controls import ControlsConfig
    from lrp_core import ModelView

BASELINE = "baseline"  # the family of methods that draw relevance at random
_LENGTHS = frozenset(range(64))  # powers of two: the memory of passes is not measured

Maps = dict[str, dict[str, np.ndarray]]  # relevance [T] by method and sample


@dataclass(frozen=True)
class Controlled:
    """A method in the controls: its record, the single request, and options that the run chose for it."""

    method: Method
    request: Request
    chosen: Mapping[str, Any] = field(default_factory=dict)


def subjects(run: Run) -> Iterator[tuple[ModelPlan, Inputs, Controlled]]:
    """Every method of every model and task that the settings name; nothing without settings."""
    settings = run.config.controls
    for model in run.plan.models if settings else ():
        for task, inputs in model.inputs.items():
            if settings is not None and settings.takes(model=model.name, task=task):
                for controlled in _methods_of(run.config, settings, model, inputs):
                    yield model, inputs, controlled


def _methods_of(config: RunConfig, settings: ControlsConfig, model: ModelPlan, inputs: Inputs) -> Iterator[Controlled]:
    """The methods of the run in the task's first precision, then those that a control is tried on."""
    records, dtype = configured(config), model.resolved.config.dtypes_for(inputs.task)[0]
    drawing: set[str] = set()
    for cell in model.cells:
        place = cell.artifact
        if (place.product, place.task, place.dtype) != ("relevance", inputs.task, dtype):
            continue
        record = records[place.method].configured(**cell.chosen)
        if settings.takes(method=place.method):
            drawing |= {record.base} if record.family == BASELINE else set()
            yield Controlled(record, _request(settings, cell.requests, inputs), cell.chosen)
    for record in tried_on():
        alias = records.get(record.name, record)
        if record.name not in drawing and alias.base == record.name:
            yield Controlled(record, Request(record.name, record.explanations[0], record.embeddings[0]))


def tried_on() -> list[Method]:
    """The methods that controls are tried on: planted ones, and those that draw relevance at random."""
    return [*PLANTED.values(), *(record for record in METHODS.values() if record.family == BASELINE)]


def _request(settings: ControlsConfig, requests: Sequence[Request], inputs: Inputs) -> Request:
    """The request of the explanation that is asked for, else the first one that every sample has."""
    for request in requests:
        if request.explanation == settings.explanation:
            return request
    if inputs.table["foil_id"].null_count:
        return next((request for request in requests if not needs_foil(request.explanation)), requests[0])
    return requests[0]


def place_of(product: str, model: ModelPlan, inputs: Inputs, controlled: Controlled) -> Artifact:
    """The place of the control `product` of a method."""
    dtype = model.resolved.config.dtypes_for(inputs.task)[0]
    return Artifact(product, model.name, inputs.task, dtype, controlled.request.method)


def key_fields_of(run: Run, model: ModelPlan, inputs: Inputs, controlled: Controlled) -> dict[str, Any]:
    """All that decides the relevance of the samples of a control."""
    resolved, request = model.resolved, controlled.request
    return {
        "model": resolved.identity,
        "attention": resolved.config.attn,
        "dtype": resolved.config.dtypes_for(inputs.task)[0],
        "tokenizer": inputs.tokenizer,
        "inputs": inputs.digest,
        "method": controlled.method.key(),
        "variant": [request.explanation, request.embedding],
        "subset": subset(run.config, inputs).tolist(),
        "seed": run.config.seed,
        **versions([request.explanation]),
    }


def subset(config: RunConfig, inputs: Inputs) -> np.ndarray:
    """The samples, the same for every method: indices into the views."""
    assert config.controls is not None
    return inputs.subset(config.controls.samples, config.seed)


def expected(config: RunConfig, model: ModelConfig, task: str, methods: list[str]) -> dict[str, int]:
    """The number of artifacts of a control, of a task whose samples or weights are absent."""
    settings = config.controls
    if settings is None or not settings.takes(task=task, model=model.name):
        return {}
    names = {name for name in methods if settings.takes(method=name)} | {record.name for record in tried_on()}
    return {model.dtypes_for(task)[0]: len(names)}


def units(run: Run, nodes: Sequence[Node]) -> Iterator[Unit]:
    """About `shard_rows` samples a unit, computed at once: methods share changed models, which are dear to make."""
    plan, config = nodes[0].plan, run.config
    inputs = plan.inputs[nodes[0].artifact.task]
    budget = plan.resolved.config.token_budget or config.token_budget
    for cut in cut_units(inputs, subset(config, inputs), budget, config.shard_rows):
        parts = tuple(Part(node, cut.name) for node in nodes)
        yield Unit(cut.name, parts, cut.rows, tokens=cut.tokens * len(parts), token_budget=budget)


@dataclass(frozen=True)
class Explaining:
    """The methods of some nodes, asked for the relevance of tokens under any model."""

    opened: Opened
    nodes: Sequence[Cell]
    token_budget: int

    def maps(self, view: ModelView, rows: Sequence[Row], seed: int) -> Maps:
        """The relevance of every method for every row that it explains. Draws of methods depend on `seed`."""
        from jobs.products.explaining import Explainer

        options = self.opened.options
        settings = {"checkpoint": options.checkpoint, "byte_budget": options.byte_budget, "seed": seed}
        requests = tuple(node.requests[0] for node in self.nodes)
        explainer = Explainer(view, requests, "relevance", settings, self._methods(), set(_LENGTHS))
        maps: Maps = {request.method: {} for request in requests}
        for batch in _batches(rows, self.token_budget):
            explained = explainer.batch(batch)
            for request, relevance in explained.relevance.items():
                for row, tokens in zip(explained.rows, relevance.tokens.double().numpy(), strict=True):
                    maps[request.method][row["sample_id"]] = tokens[: len(row["input_ids"])]
        return maps

    def _methods(self) -> dict[str, Method]:
        """The records of the nodes' methods, by their names in the run, with the options that were chosen."""
        methods = {record.name: record for record in tried_on()} | dict(self.opened.options.methods)
        for node in self.nodes:
            if node.chosen:
                name = node.artifact.method
                methods[name] = methods[name].configured(name, **node.chosen)
        return methods


def unexplained(rows: Sequence[Row], maps: Mapping[str, np.ndarray], request: Request) -> dict[str, Reject]:
    """Rejects, by sample, for rows without a finite map of a method."""
    rejects = {}
    for row in rows:
        sample = row["sample_id"]
        if sample not in maps:
            detail = f"a {request.explanation} explanation needs a foil"
            rejects[sample] = Reject(sample, NO_FOIL, detail)
        elif not np.isfinite(maps[sample]).all():
            rejects[sample] = Reject(sample, "not_finite", "relevance is not finite")
    return rejects


def _batches(rows: Sequence[Row], token_budget: int) -> Iterator[list[Row]]:
    """Rows with a foil, then those without, in batches whose padded size stays within the budget."""
    for with_foil in (True, False):
        batch: list[Row] = []
        for row in sorted((row for row in rows if (row["foil_id"] is not None) == with_foil), key=_by_length):
            longest = len(batch[0]["input_ids"]) if batch else 0
            if batch and longest * (len(batch) + 1) > token_budget:
                yield batch
                batch = []
            batch.append(row)
        if batch:
            yield batch


def _by_length(row: Row) -> tuple[int, str]:
    return -len(row["input_ids"]), row["sample_id"]
