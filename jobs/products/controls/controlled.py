"""The common parts of all controls: the controlled methods, their samples, and relevance under changed models.

Every control also has the planted methods, which must fail it, and the baseline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from closelook.evaluation.benchmark import corpus
from closelook.jobs.config import configured
from closelook.jobs.methods import METHODS
from closelook.jobs.plan.inputs import Inputs
from closelook.jobs.plan.node import Cell, ModelPlan, Part, Run
from closelook.jobs.plan.units import NO_FOIL, cut_units
from closelook.jobs.products.record import Made, Opened, Reject, Row, Unit
from closelook.jobs.products.relevance import with_chosen
from closelook.jobs.store import Artifact
from closelook.lrp_core.methods.record import Method
from closelook.lrp_core.methods.records import PLANTED
from closelook.lrp_core.records.explained import needs_foil, versions
from closelook.lrp_core.records.types import Request

if TYPE_CHECKING:
    from closelook.jobs.config import RunConfig
    from closelook.jobs.config.blocks import ControlsConfig
    from closelook.lrp_core import ModelView

BASELINE = "baseline"  # the family of methods that draw relevance at random

BySample = dict[str, np.ndarray]  # numbers by sample id, such as relevance [T]
Maps = dict[str, BySample]  # relevance [T] by method and sample
Rejects = Mapping[str, Mapping[str, Reject]]  # by method and sample
Subset = Callable[["RunConfig", Inputs], np.ndarray]  # chooses samples: indices into the views


@dataclass(frozen=True)
class Controlled:
    """A method in the controls: its record, the single request, and options that the run chose for it."""

    method: Method
    request: Request
    chosen: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, kw_only=True)
class ControlNode(Cell):
    """A control of one method."""

    base: str  # the name of the method's record
    rows: tuple[int, ...]  # the samples: indices into the views
    depths: int | None = None  # of a randomisation: how many depths are measured; None: all


def subjects(run: Run) -> Iterator[tuple[ModelPlan, Inputs, Controlled]]:
    """Yield (model, inputs, method) for all methods, models and tasks that the settings name; none without settings."""
    settings = run.config.controls
    for model in run.plan.models if settings else ():
        for task, inputs in model.inputs.items():
            if settings is not None and settings.takes(model=model.name, task=task):
                for controlled in _methods_of(run.config, settings, model, inputs):
                    yield model, inputs, controlled


def _methods_of(config: RunConfig, settings: ControlsConfig, model: ModelPlan, inputs: Inputs) -> Iterator[Controlled]:
    """Yield the methods of the run in the task's first precision, then those that `tried_on` adds."""
    records, dtype = configured(config), model.config.first_dtype(inputs.task)
    drawing: set[str] = set()
    for cell in model.cells:
        artifact = cell.artifact
        if (artifact.product, artifact.task, artifact.dtype) != ("relevance", inputs.task, dtype):
            continue
        record = records[artifact.method].configured(**cell.chosen)
        if settings.takes(method=artifact.method):
            drawing |= {record.base} if record.family == BASELINE else set()
            yield Controlled(record, _request(settings, cell.requests, inputs), cell.chosen)
    for record in tried_on():
        alias = records.get(record.name, record)
        if record.name not in drawing and alias.base == record.name:
            yield Controlled(record, Request(record.name, record.explanations[0], record.embeddings[0]))


def tried_on() -> list[Method]:
    """The methods with which controls are tested: planted ones, and those that draw relevance at random."""
    return [*PLANTED.values(), *(record for record in METHODS.values() if record.family == BASELINE)]


def _request(settings: ControlsConfig, requests: Sequence[Request], inputs: Inputs) -> Request:
    """The request with the configured explanation; else the first that is possible for every sample."""
    for request in requests:
        if request.explanation == settings.explanation:
            return request
    if inputs.without_foil:
        return next((request for request in requests if not needs_foil(request.explanation)), requests[0])
    return requests[0]


def control_nodes(
    run: Run,
    product: str,
    control_key: Mapping[str, Any],
    samples: Subset | None = None,
    **fields: Any,
) -> Iterator[ControlNode]:
    """Yield a node of the control `product` for each controlled method.

    `control_key` holds the key fields of this control, `samples` chooses the samples (default: `subset`), and `fields`
    are further fields of the nodes.
    """
    for model, inputs, controlled in subjects(run):
        rows = (samples or subset)(run.config, inputs).tolist()
        if rows:
            request, dtype = controlled.request, model.config.first_dtype(inputs.task)
            artifact = Artifact(product, model.name, inputs.task, dtype, request.method)
            of_samples = {**model.key_fields(artifact, rows, run.config.seed), "tokenizer": inputs.tokenizer}
            of_variant = {"variant": request.variant, **versions([request.explanation])}
            yield ControlNode(
                artifact=artifact,
                key_fields={**control_key, **of_samples, **of_variant, "method": controlled.method.key()},
                samples=len(rows),
                forwards=product,
                model=model,
                requests=(request,),
                chosen=controlled.chosen,
                base=controlled.method.base,
                rows=tuple(rows),
                **fields,
            )


def subset(config: RunConfig, inputs: Inputs) -> np.ndarray:
    """The samples of the controls, the same for every method: indices into the views."""
    assert config.controls is not None
    return inputs.subset(config.controls.samples, config.seed)


def units(run: Run, nodes: Sequence[ControlNode]) -> Iterator[Unit]:
    """Units of about `shard_rows` samples, each one batch: its methods share changed models, which are slow to make."""
    first, budget = nodes[0], run.token_budget(nodes[0])
    for cut in cut_units(first.inputs, np.array(first.rows), budget, run.config.shard_rows):
        yield Unit(cut.name, rows=cut.rows, tokens=cut.tokens * len(nodes), token_budget=budget)


#: Computes a control of these nodes on these rows: the results by method.
Control = Callable[["Explaining", Sequence[ControlNode], Sequence[Row]], Mapping[str, Made]]


def computed(
    opened: Opened,
    parts: Sequence[Part],
    rows: Sequence[Row],
    control: Control,
) -> dict[Part, Made]:
    """The results of a control by part.

    `control` gives them by method, for rows that all have a target: without one, the model's own prediction is the
    target. The token budget is halved while memory runs out.
    """
    from closelook.jobs.runner.rows import that_fits
    from closelook.lrp_core.readers.predictions import with_predictions

    nodes: list[ControlNode] = [part.node for part in parts]
    rows = with_predictions(opened.view, rows)

    def made(token_budget: int) -> Mapping[str, Made]:
        return control(Explaining.of(opened, nodes, token_budget), nodes, rows)

    by_method, splits = that_fits(made, opened.token_budget)
    return {part: replace(by_method[part.node.artifact.method], splits=splits) for part in parts}


@dataclass(frozen=True)
class Explaining:
    """Requests for the relevance of tokens, which can be computed under any model."""

    opened: Opened
    requests: tuple[Request, ...]
    methods: Mapping[str, Method]  # records by their names in the run
    token_budget: int

    @classmethod
    def of(cls, opened: Opened, nodes: Sequence[Cell], token_budget: int) -> Explaining:
        """The requests of these nodes, with the options that were chosen."""
        methods = {record.name: record for record in tried_on()} | dict(opened.options.methods)
        return cls(opened, tuple(node.requests[0] for node in nodes), with_chosen(methods, nodes), token_budget)

    def maps(self, view: ModelView, rows: Sequence[Row], seed: int) -> Maps:
        """The relevance [T] of every method for every row that it can explain, by method and sample id, under `view`.

        `seed` decides what methods draw at random.
        """
        from closelook.jobs.products.explaining import Explainer

        settings = self.opened.options.settings | {"seed": seed}
        explainer = Explainer(view, self.requests, "relevance", settings, self.methods, metered=None)
        maps: Maps = {request.method: {} for request in self.requests}
        for batch in batches(rows, self.token_budget):
            explained = explainer.batch(batch)
            for request, relevance in explained.relevance.items():
                for row, tokens in zip(explained.rows, relevance.tokens.double().numpy(), strict=True):
                    maps[request.method][row["sample_id"]] = tokens[: len(row["input_ids"])]
        return maps

    def trained(self, rows: Sequence[Row]) -> tuple[Maps, Rejects]:
        """(relevance [T] under the trained model, rejects), both by method and sample id: a row is in one of them.

        Rejects are rows that a method cannot explain, and rows whose relevance is not finite.
        """
        maps = self.maps(self.opened.view, rows, self.opened.options.seed)
        explained: Maps = {}
        rejects: dict[str, dict[str, Reject]] = {}
        for request in self.requests:
            of_method, finite, refused = maps[request.method], dict[str, np.ndarray](), dict[str, Reject]()
            for sample in (row["sample_id"] for row in rows):
                if sample not in of_method:
                    detail = f"a {request.explanation} explanation needs a foil"
                    refused[sample] = Reject(sample, NO_FOIL, detail)
                elif np.isfinite(of_method[sample]).all():
                    finite[sample] = of_method[sample]
                else:
                    refused[sample] = Reject(sample, "not_finite", "relevance is not finite")
            explained[request.method], rejects[request.method] = finite, refused
        return explained, rejects


def in_order(
    nodes: Sequence[Cell], schema: pa.Schema, entries: Mapping[str, Sequence[Row]], within: str, rejects: Rejects
) -> dict[str, Made]:
    """The shards by method: `entries` with the columns of the variant, by sample id, then by the column `within`."""
    shards = {}
    for node in nodes:
        name, request = node.artifact.method, node.requests[0]
        variant = {"explanation": request.explanation, "embedding": request.embedding}
        rows = [variant | dict(entry) for entry in entries[name]]
        rows.sort(key=lambda row: (row["sample_id"], row[within]))
        shards[name] = Made(pa.Table.from_pylist(rows, schema=schema), tuple(rejects[name].values()))
    return shards


def batches(rows: Sequence[Row], token_budget: int) -> Iterator[list[Row]]:
    """Yield batches, first of rows with a foil, then of those without, whose padded size stays within the budget."""
    for with_foil in (True, False):
        alike = [row for row in rows if (row["foil_id"] is not None) == with_foil]
        alike.sort(key=lambda row: row["sample_id"])
        for batch in corpus.batches([len(row["input_ids"]) for row in alike], token_budget):
            yield [alike[at] for at in batch]
