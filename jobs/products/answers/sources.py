"""Relevance of the sources of answers, of every method, and how well it tells what answers do when sources go."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evaluation.schema import ABLATIONS, titled
from evaluation.schema import SOURCES as SCHEMA
from jobs.config import ModelConfig, RunConfig
from jobs.config.methods import configured
from jobs.plan.cells import explains, schema_of
from jobs.plan.node import Cell, ModelPlan, Node, Part, Run
from jobs.plan.units import NO_ABLATIONS, NO_RELEVANCE
from jobs.products.answers import ablations
from jobs.products.answers.ablations import AblationsNode
from jobs.products.answers.node import SourcesNode
from jobs.products.curves import shards_by_sample
from jobs.products.record import Made, Opened, Product, Reject, Row, Unit
from jobs.store import Artifact, Ledger

VERSION = 1  # raised when numbers change: stored ones of older versions are stale
_RELEVANCE_COLUMNS = ["sample_id", "explanation", "embedding", "relevance"]

Maps = dict[str, dict[str, np.ndarray]]  # relevance of tokens [T] by sample and explanation


def nodes(run: Run) -> Iterator[SourcesNode]:
    """A node for each method of every model and task whose answers are ablated."""
    of_place: dict[tuple[str, str], list[AblationsNode]] = {}
    for node in ablations.nodes(run):
        of_place.setdefault((node.artifact.model, node.artifact.task), []).append(node)
    for ablated in of_place.values():
        yield from _nodes(run, ablated[0].plan, ablated)


def _nodes(run: Run, model: ModelPlan, ablated: Sequence[AblationsNode]) -> Iterator[SourcesNode]:
    settings, place = run.config.ablations, ablated[0].artifact
    assert settings is not None
    for cell in model.cells:
        its_place = (cell.artifact.product, cell.artifact.task, cell.artifact.dtype)
        if its_place == ("relevance", place.task, place.dtype) and settings.takes(method=cell.artifact.method):
            yield _node(run, model, ablated, cell.artifact.method, cell)
    for name in ablations.of_units(run.config, model.resolved.config):
        yield _node(run, model, ablated, name, None)


def _node(run: Run, model: ModelPlan, ablated: Sequence[AblationsNode], name: str, cell: Cell | None) -> SourcesNode:
    settings, first = run.config.ablations, ablated[0]
    assert settings is not None
    inputs = model.inputs[first.artifact.task]
    requests = () if cell is None else _of_first_embedding(cell)
    shown = inputs.subset(settings.shown, run.config.seed, np.array(first.rows))
    method = configured(run.config)[name].configured(**(cell.chosen if cell else {}))
    return SourcesNode(
        artifact=Artifact("sources", model.name, inputs.task, first.artifact.dtype, name),
        key_fields={
            "version": VERSION,
            "schema": titled(SCHEMA),
            "ablations": [node.artifact.key for node in ablated],
            "relevance": None if cell is None else cell.artifact.key,
            "method": method.key(),
            "variants": [[request.explanation, request.embedding] for request in requests],
            "pool": settings.pool,
            "shown": shown.tolist(),
        },
        samples=first.samples,
        made_of=(*(node.artifact for node in ablated), *(() if cell is None else (cell.artifact,))),
        forwards="sources",
        model=model,
        requests=requests,
        chosen=cell.chosen if cell else {},
        pool=settings.pool,
        seed=run.config.seed,
        shown=frozenset(inputs.ids.take(pa.array(shown)).to_pylist()),
    )


def _of_first_embedding(cell: Cell) -> tuple[Any, ...]:
    first = cell.requests[0].embedding
    return tuple(request for request in cell.requests if request.embedding == first)


def expected(config: RunConfig, model: ModelConfig, task: str, methods: list[str]) -> dict[str, int]:
    """One for each method, of a task whose samples or weights are absent."""
    settings, records = config.ablations, configured(config)
    if settings is None or not ablations.expected(config, model, task, methods):
        return {}
    asked = [name for name in methods if settings.takes(method=name)]
    said = [name for name in asked if explains(config, records[name], task) or "units" in records[name].given]
    return {model.dtypes_for(task)[0]: len(said)}


def units(run: Run, nodes: Sequence[Node]) -> Iterator[Unit]:
    """The units of the ablations; each part has the shards of relevance and of ablations that have its samples."""
    first = nodes[0]
    inputs = first.plan.inputs[first.artifact.task]
    of_ways = {made.method: made for made in first.made_of if made.product == "ablations"}
    ablated = [node for node in ablations.nodes(run) if node.artifact in of_ways.values()]
    by_way = {way: _by_sample(run.ledger, made) for way, made in of_ways.items()}
    by_node = {node: _relevance_by_sample(run.ledger, node) for node in nodes}
    for unit in ablations.units(run, ablated):
        names = inputs.ids.take(pa.array(unit.rows)).to_pylist()
        shards = {way: _shards(known, names) for way, known in by_way.items()}
        parts = tuple(Part(node, unit.name, (_shards(known, names), shards)) for node, known in by_node.items())
        yield Unit(unit.name, parts, unit.rows, tokens=unit.tokens, token_budget=unit.token_budget)


def _relevance_by_sample(ledger: Ledger, node: Node) -> dict[str, str]:
    relevance = [made for made in node.made_of if made.product == "relevance"]
    return shards_by_sample(ledger, relevance[0]) if relevance else {}


def _by_sample(ledger: Ledger, artifact: Artifact) -> dict[str, str]:
    """The shard that has a sample, by its id."""
    return {
        sample: path
        for path in ledger.files(artifact)
        for sample in ledger.store.read(path, ABLATIONS, ["sample_id"])["sample_id"].to_pylist()
    }


def _shards(known: Mapping[str, str], names: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(known[name] for name in names if name in known))


def compute(opened: Opened, parts: Sequence[Part], rows: Sequence[Row]) -> Mapping[Part, Made]:
    """The sources of a batch of answers by every method, judged by the same ablations."""
    from jobs.products.answers.judged import entries_of

    names = [row["sample_id"] for row in rows]
    nodes = {part: part.node for part in parts if isinstance(part.node, SourcesNode)}
    ablated = {way: _ablations(opened, shards, names) for way, shards in parts[0].inputs[1].items()}
    maps = {part: _maps(opened, part, node, names) for part, node in nodes.items()}
    entries: dict[Part, list[dict[str, Any]]] = {part: [] for part in nodes}
    rejects: dict[Part, list[Reject]] = {part: [] for part in nodes}
    for row in rows:
        sample = row["sample_id"]
        there = {}
        for part, node in nodes.items():
            if any(sample not in records for records in ablated.values()):
                rejects[part].append(Reject(sample, NO_ABLATIONS, "its ablations were rejected"))
            elif node.requests and sample not in maps[part]:
                rejects[part].append(Reject(sample, NO_RELEVANCE, f"{node.artifact.method} rejected it"))
            else:
                there[part] = node
        for way, records in ablated.items() if there else ():
            told = {part: maps[part].get(sample, {}) for part in there}
            for part, own in entries_of(opened, there, row, way, records[sample], told).items():
                entries[part] += own
    return {part: Made(pa.Table.from_pylist(entries[part], schema=SCHEMA), tuple(rejects[part])) for part in nodes}


def _ablations(opened: Opened, shards: Sequence[str], names: Sequence[str]) -> dict[str, Row]:
    """The ablations of samples, by their ids."""
    rows = opened.store.read(shards, ABLATIONS).to_pylist() if shards else []
    return {row["sample_id"]: row for row in rows if row["sample_id"] in names}


def _maps(opened: Opened, part: Part, node: SourcesNode, names: Sequence[str]) -> Maps:
    """The relevance of tokens by the explanations that the node asks for."""
    asked = {(request.explanation, request.embedding) for request in node.requests}
    maps: Maps = {}
    for path in part.inputs[0]:
        table = opened.store.read(path, schema_of("relevance", node.artifact.dtype), _RELEVANCE_COLUMNS)
        for row in table.filter(pc.is_in(table["sample_id"], pa.array(names))).to_pylist():
            if (row["explanation"], row["embedding"]) in asked:
                own = maps.setdefault(row["sample_id"], {})
                own[row["explanation"]] = np.array(row["relevance"], float)
    return maps


SOURCES = Product(
    name="sources",
    title="sets of sources",
    stage="ablations",
    nodes=nodes,
    expected=expected,
    schema=lambda dtype: SCHEMA,
    units=units,
    compute=compute,
)
