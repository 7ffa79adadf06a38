"""The products of relevance: of tokens, and finer relevance (of heads, layers, neurons and labels).

They store cells.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from closelook.evaluation.benchmark.audit import rejected as in_words
from closelook.evaluation.schema import RUNTIME
from closelook.jobs.config import configured
from closelook.jobs.plan.cells import schema_of, without_samples
from closelook.jobs.plan.finer import KEPT
from closelook.jobs.plan.node import Cell, Node, Part, Run
from closelook.jobs.plan.units import cut_units
from closelook.jobs.products.record import Made, Opened, Product, Row, Unit

if TYPE_CHECKING:
    from closelook.jobs.products.explaining import ExplainedBatch, Explainer
    from closelook.lrp_core.methods.record import Method


def units(run: Run, nodes: Sequence[Cell]) -> Sequence[Unit]:
    """Units of batches within the token budget, longest samples first, about `shard_rows` samples each."""
    artifact, inputs = nodes[0].artifact, nodes[0].inputs
    size = None if artifact.product == RELEVANCE.name else run.config.finer(artifact.product)[artifact.task]
    rows = inputs.subset(size, run.config.seed)
    return cut_units(inputs, rows, run.token_budget(nodes[0]), run.config.shard_rows)


def compute(opened: Opened, parts: Sequence[Part], rows: Sequence[Row]) -> Mapping[Part, ExplainedBatch]:
    """The relevance of a batch by the methods of all `parts`: the same value for each part, since they share passes."""
    nodes = [part.node for part in parts]
    methods = ("metered", nodes[0].artifact.product, *(node.artifact.method for node in nodes))
    metered = opened.memory.setdefault(methods, set())
    explainer = explainer_of(opened, nodes, metered, nodes[0].artifact.product)
    return dict.fromkeys(parts, explainer.batch(rows))


def explainer_of(
    opened: Opened, nodes: Sequence[Cell], metered: set[int] | None = None, product: str = "relevance"
) -> Explainer:
    """The explainer for these nodes, with chosen options.

    `metered`: lengths whose memory is known; None: no memory is measured. `product`: "relevance", or a finer one.
    """
    from closelook.jobs.products.explaining import Explainer

    options, methods = opened.options, with_chosen(opened.options.methods, nodes)
    requests = tuple(request for node in nodes for request in node.requests)
    return Explainer(opened.view, requests, product, options.settings, methods, metered)


def with_chosen(methods: Mapping[str, Method], nodes: Sequence[Cell]) -> dict[str, Method]:
    """The methods by name, those of `nodes` with the options that were chosen for them."""
    configured_methods = dict(methods)
    for node in nodes:
        if node.chosen:
            name = node.artifact.method
            configured_methods[name] = methods[name].configured(name, **node.chosen)
    return configured_methods


def combine(opened: Opened, part: Part, values: Sequence[ExplainedBatch]) -> Made:
    """The rows of one cell, with rejects for samples without anything to explain or with infinite numbers."""
    _write_runtime(opened, part, values)  # first, since an existing shard means that its timings exist
    return tables_of(part, values)


def tables_of(part: Part, values: Sequence[ExplainedBatch]) -> Made:
    """The rows and rejects of the cell of `part`, from its explained batches."""
    from closelook.jobs.products.relevance_tables import cell_table

    artifact = part.node.artifact
    table, rejects = cell_table(artifact.product, artifact.dtype, part.node.requests, values)
    return Made(table, tuple(rejects))


def _write_runtime(opened: Opened, part: Part, values: Sequence[ExplainedBatch]) -> None:
    """Write the timings of all passes of the unit; those that an earlier run wrote for other methods are kept."""
    from closelook.jobs.products import relevance_tables

    artifact = part.node.artifact
    passes = opened.memory.setdefault(("timed", artifact.product, artifact.task, artifact.dtype, part.shard), {})
    of_pass = tuple(map(id, values))  # parts of one pass share these objects
    if of_pass in passes:
        return
    passes[of_pass] = relevance_tables.runtime_table(part.shard, values, str(opened.view.device))
    timed = pa.concat_tables(passes.values())
    path = (
        f"{opened.store.runtime(artifact.model, artifact.task, artifact.dtype)}/{artifact.product}-{part.shard}.parquet"
    )
    if timed.num_rows:
        with suppress(FileNotFoundError):
            timed = relevance_tables.with_earlier(timed, opened.store.read(path, RUNTIME))
        opened.store.write_shard(path, timed, RUNTIME)


def method_entries(run: Run, node: Cell) -> dict[str, Any]:
    """The method's key and the variants, as entries of a cell's manifest."""
    method = configured(run.config)[node.artifact.method].configured(**node.chosen)
    return {"method": method.key(), "variants": [list(request.variant) for request in node.requests]}


def _attributed(name: str) -> Product:
    """The record of the product `name`, whose nodes are cells, computed by the stage `attribute`."""

    def nodes(run: Run) -> Iterator[Node]:
        for model in run.plan.models:
            for cell in model.cells:
                if cell.artifact.product == name:
                    yield cell.of(model)

    return Product(
        name=name,
        title="cells",
        stage="attribute",
        nodes=nodes,
        schema=partial(schema_of, name),
        units=units,
        compute=compute,
        combine=combine,
        entries=method_entries,
    )


def _lines(run: Run, planned: Sequence[Node], computed: Sequence[Node]) -> Iterator[str]:
    """Yield the models and tasks without a sample."""
    for (model, task), rejects in without_samples(run.plan, run.ledger).items():
        yield f"{model}/{task}: no sample fits the tokenizer, so its cells are empty: {in_words(rejects)}"


RELEVANCE = replace(_attributed("relevance"), lines=_lines)
#: Products of finer relevance by name; each is computed for some samples, in passes of its own.
FINER = {name: _attributed(name) for name in KEPT}
