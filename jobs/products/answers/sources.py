"""The sources of answers: how relevant each unit of the prompt is to the answer, by every method.

Each method is judged by what happens to the answer when the units that it finds relevant are removed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from closelook.evaluation.schema import ABLATIONS, titled
from closelook.evaluation.schema import SOURCES as SCHEMA
from closelook.jobs.config import AblationsConfig, configured
from closelook.jobs.plan.cells import schema_of
from closelook.jobs.plan.node import Cell, ModelPlan, Part, Run
from closelook.jobs.plan.units import NO_ABLATIONS, NO_RELEVANCE
from closelook.jobs.products.answers import ablations
from closelook.jobs.products.answers.ablations import AblationsNode, SourcesNode
from closelook.jobs.products.curves import shards_by_sample, shards_of
from closelook.jobs.products.record import Made, Opened, Product, Reject, Row, Unit
from closelook.jobs.store import Artifact

VERSION = 1  # raised when numbers change: stored ones of older versions are stale
_RELEVANCE_COLUMNS = ["sample_id", "explanation", "embedding", "relevance"]

Maps = dict[str, dict[str, np.ndarray]]  # relevance of tokens [T] by sample id and explanation


def nodes(run: Run) -> Iterator[SourcesNode]:
    """A node for each method, of every model and task whose answers are ablated."""
    by_model_and_task: dict[tuple[str, str], list[AblationsNode]] = {}
    for node in ablations.nodes(run):
        by_model_and_task.setdefault((node.artifact.model, node.artifact.task), []).append(node)
    for ablated in by_model_and_task.values():
        yield from _nodes(run, ablated[0].plan, ablated)


def _nodes(run: Run, model: ModelPlan, ablated: Sequence[AblationsNode]) -> Iterator[SourcesNode]:
    """The nodes of one model and task; `ablated` are its ablations, one node for each way of removal."""
    settings, first = run.config.ablations, ablated[0].artifact
    assert settings is not None
    for cell in model.cells:
        setting = (cell.artifact.product, cell.artifact.task, cell.artifact.dtype)
        if setting == ("relevance", first.task, first.dtype) and settings.takes(method=cell.artifact.method):
            yield _node(run, settings, model, ablated, cell.artifact.method, cell)
    for name in ablations.of_units(run.config, model.config):
        yield _node(run, settings, model, ablated, name, None)


def _node(
    run: Run,
    settings: AblationsConfig,
    model: ModelPlan,
    ablated: Sequence[AblationsNode],
    name: str,
    cell: Cell | None,
) -> SourcesNode:
    """The node of the method `name`; `cell` is its relevance of tokens, None for methods that use ablations only."""
    first = ablated[0]
    inputs = first.inputs
    made_of = [node.artifact for node in ablated]
    requests: tuple[Any, ...] = ()
    chosen: Mapping[str, Any] = {}
    relevance_key = None
    if cell is not None:
        made_of.append(cell.artifact)
        first_embedding = cell.requests[0].embedding
        requests = tuple(request for request in cell.requests if request.embedding == first_embedding)
        chosen = cell.chosen
        relevance_key = cell.artifact.key
    shown = inputs.subset(settings.shown, run.config.seed, np.array(first.rows))
    method = configured(run.config)[name].configured(**chosen)
    return SourcesNode(
        artifact=Artifact("sources", model.name, inputs.task, first.artifact.dtype, name),
        key_fields={
            "version": VERSION,
            "schema": titled(SCHEMA),
            "ablations": [node.artifact.key for node in ablated],
            "relevance": relevance_key,
            "method": method.key(),
            "variants": [request.variant for request in requests],
            "pool": settings.pool,
            "shown": shown.tolist(),
        },
        samples=first.samples,
        made_of=tuple(made_of),
        forwards="sources",
        model=model,
        requests=requests,
        chosen=chosen,
        pool=settings.pool,
        seed=run.config.seed,
        shown=frozenset(inputs.ids(shown)),
    )


def units(run: Run, nodes: Sequence[SourcesNode]) -> Iterator[Unit]:
    """The units of the ablations. `inputs` of a part: shards of its relevance, and of the ablations of each way."""
    first = nodes[0]
    of_ways = {made.method: made for made in first.made_of if made.product == "ablations"}
    ablated = [node for node in ablations.nodes(run) if node.artifact in of_ways.values()]
    by_way = {way: shards_by_sample(run.ledger, made, ABLATIONS) for way, made in of_ways.items()}
    by_node: dict[SourcesNode, dict[str, str]] = {node: {} for node in nodes}
    for node in nodes:
        for made in node.made_of:  # none for methods that use ablations only
            if made.product == "relevance":
                by_node[node] = shards_by_sample(run.ledger, made, schema_of("relevance", made.dtype))
    for unit in ablations.units(run, ablated):
        names = first.inputs.ids(np.asarray(unit.rows))
        shards = {way: shards_of(names, by_sample) for way, by_sample in by_way.items()}
        parts = tuple(Part(node, unit.name, (shards_of(names, known), shards)) for node, known in by_node.items())
        yield replace(unit, parts=parts)


def compute(opened: Opened, parts: Sequence[Part], rows: Sequence[Row]) -> Mapping[Part, Made]:
    """The relevance of each source of a batch of answers by every method, and its scores on the ablations, by part.

    The inputs of a part are the shards of its relevance, and those of ablations by way of removal, which are the same
    for all parts. A sample without ablations is a reject of all methods, one without relevance, or with too few sources
    to fit a method to, of that method alone.
    """
    from closelook.jobs.products.answers.judged import entries_of

    names = [row["sample_id"] for row in rows]
    nodes: dict[Part, SourcesNode] = {part: part.node for part in parts}
    _, ablation_shards = parts[0].inputs
    ablated: dict[str, dict[str, Row]] = {}
    for way, shards in ablation_shards.items():
        of_way = opened.store.read(shards, ABLATIONS).to_pylist() if shards else []
        ablated[way] = {row["sample_id"]: row for row in of_way if row["sample_id"] in names}
    maps = {part: _maps(opened, part, node, names) for part, node in nodes.items()}
    entries: dict[Part, list[Row]] = {part: [] for part in nodes}
    rejects: dict[Part, list[Reject]] = {part: [] for part in nodes}
    for row in rows:
        sample = row["sample_id"]
        computable = {}
        for part, node in nodes.items():
            if any(sample not in records for records in ablated.values()):
                rejects[part].append(Reject(sample, NO_ABLATIONS, "the ablations of this sample were rejected"))
            elif node.requests and sample not in maps[part]:
                rejects[part].append(Reject(sample, NO_RELEVANCE, f"{node.artifact.method} has no relevance of it"))
            else:
                computable[part] = node
        if not computable:
            continue
        for way, records in ablated.items():
            sample_maps = {part: maps[part].get(sample, {}) for part in computable}
            made = entries_of(opened, computable, row, way, records[sample], sample_maps)
            for part in computable:
                entries[part] += made.get(part, ())
                if part not in made:
                    rejects[part].append(Reject(sample, NO_ABLATIONS, "its sources are too few to fit the method to"))
    return {part: Made(pa.Table.from_pylist(entries[part], schema=SCHEMA), tuple(rejects[part])) for part in nodes}


def _maps(opened: Opened, part: Part, node: SourcesNode, names: Sequence[str]) -> Maps:
    """The relevance of tokens [T] of the samples `names`, by sample id and explanation.

    Explanations alone tell requests apart, since all requests of a node have the same embedding.
    """
    requested = {request.variant for request in node.requests}
    maps: Maps = {}
    for path in part.inputs[0]:
        table = opened.store.read(path, schema_of("relevance", node.artifact.dtype), _RELEVANCE_COLUMNS)
        for row in table.filter(pc.is_in(table["sample_id"], pa.array(names))).to_pylist():
            if (row["explanation"], row["embedding"]) in requested:
                by_explanation = maps.setdefault(row["sample_id"], {})
                by_explanation[row["explanation"]] = np.array(row["relevance"], float)
    return maps


SOURCES = Product(
    name="sources",
    title="cells of sources",
    stage="ablations",
    nodes=nodes,
    schema=lambda dtype: SCHEMA,
    units=units,
    compute=compute,
    turns=(1,),
)
