"""Heat maps of max-activating examples: which of their tokens make a neuron active.

They explain the neurons that rank first in samples. Keys cover the examples (`contexts`) and the relevance that ranks
the neurons.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from closelook.evaluation.benchmark.corpus import batches
from closelook.evaluation.schema import CONTEXTS, NEURONS, titled
from closelook.evaluation.schema import HEATMAPS as SCHEMA
from closelook.jobs.plan.node import ModelPlan, Node, Part, Run
from closelook.jobs.products.neurons.contexts import contexts_of, layer_name
from closelook.jobs.products.record import Made, Opened, Product, Row, Unit
from closelook.jobs.store import Artifact, Ledger
from closelook.lrp_core.methods import METHODS

if TYPE_CHECKING:
    from closelook.jobs.config import RunConfig
    from closelook.lrp_core import ModelView

VERSION = 1  # raised when numbers change: stored ones of older versions are stale
FIRST = 5  # examples of a neuron that are explained; the report shows as many


@dataclass(frozen=True, eq=False, kw_only=True)
class HeatmapsNode(Node):
    """The heat maps of one model's max-activating examples, for the neurons that rank first in samples."""

    neurons: tuple[Artifact, ...]  # cells of relevance of neurons
    ranks: int  # how many neurons of each sample are explained

    @property
    def contexts(self) -> Artifact:
        """The max-activating examples."""
        return self.made_of[0]


def nodes(run: Run) -> Iterator[HeatmapsNode]:
    """The heat maps of every model. Raises as `contexts_of`."""
    for model in run.plan.models:
        node = heatmaps_of(run.config, model, run.ledger)
        if node is not None:
            yield node


def heatmaps_of(config: RunConfig, model: ModelPlan, ledger: Ledger) -> HeatmapsNode | None:
    """The node of a model's heat maps. Raises as `contexts_of`.

    None if the model does not read the corpus, the run keeps none of its neurons, or the method does not apply to it.
    """
    contexts = contexts_of(config, model, ledger)
    settings = config.neurons.corpus if config.neurons else None
    if contexts is None or settings is None or settings.explain is None:
        return None
    method = METHODS[settings.explain]
    cells = tuple(cell.artifact for cell in model.cells if cell.artifact.product == "neurons")
    if not cells or method.missing(model.resolved.capabilities):
        return None
    examples = contexts.artifact
    return HeatmapsNode(
        artifact=Artifact("heatmaps", *examples.columns[:3], settings.explain),
        key_fields={
            "version": VERSION,
            "schema": titled(SCHEMA),
            "contexts": examples.key,
            "neurons": [cell.key for cell in cells],
            "method": method.key(),
            "first": FIRST,
            "ranks": settings.ranks,
        },
        samples=1,
        made_of=(examples, *cells),
        model=model,
        neurons=cells,
        ranks=settings.ranks,
    )


def kept_neurons(ledger: Ledger, cells: Iterable[Artifact], ranks: int) -> tuple[tuple[int, int], ...]:
    """(layer, number) of every neuron that is among the first `ranks` of some sample of `cells`, ascending."""
    named: set[tuple[int, int]] = set()
    for cell in cells:
        table = ledger.read(cell, NEURONS, ["layer", "neuron"])  # a row for each sample, with a list in each column
        first = (pc.list_slice(table[name], 0, ranks) for name in ("layer", "neuron"))
        named |= set(zip(*(pc.list_flatten(column).to_pylist() for column in first), strict=True))
    return tuple(sorted(named))


def units(run: Run, nodes: Sequence[HeatmapsNode]) -> Iterator[Unit]:
    """A unit for each layer, lowest first: the examples of the layer's neurons."""
    (node,) = nodes
    by_layer: dict[int, list[int]] = {}
    for layer, neuron in kept_neurons(run.ledger, node.neurons, node.ranks):
        by_layer.setdefault(layer, []).append(neuron)
    for layer, neurons in by_layer.items():
        name = layer_name(layer)
        path = f"{node.contexts.folder}/{node.contexts.shard(name)}"
        rows = _contexts(run.store.read(path, CONTEXTS), neurons)
        yield Unit(name, (Part(node, name),), rows, tokens=len(neurons), token_budget=run.token_budget(node), size=1)


def _contexts(table: pa.Table, neurons: Sequence[int]) -> list[Row]:
    """The first examples of these neurons, as rows named LAYER.NEURON#RANK."""
    of_neurons = pc.is_in(table["neuron"], pa.array(neurons, pa.int32()))
    first = table.filter(pc.and_(pc.less_equal(table["rank"], FIRST), of_neurons))
    return [{**row, "sample_id": f"{row['layer']}.{row['neuron']}#{row['rank']}"} for row in first.to_pylist()]


@dataclass(frozen=True)
class Explained:
    """The relevance of max-activating examples, in the order of `rows`."""

    rows: tuple[Row, ...]
    relevance: tuple[Sequence[float] | None, ...]  # None where it is not finite
    splits: int = 0


def compute(opened: Opened, parts: Sequence[Part], rows: Sequence[Row]) -> Mapping[Part, Explained]:
    """The relevance of the tokens of examples to the activations of their neurons."""
    from closelook.jobs.runner.rows import that_fits

    (part,) = parts
    relevance, splits = that_fits(partial(explained, opened.view, rows, part.node.artifact.method), opened.token_budget)
    return {part: Explained(tuple(rows), tuple(relevance), splits)}


def explained(view: ModelView, rows: Sequence[Row], method: str, token_budget: int) -> list[Sequence[float] | None]:
    """The relevance of the tokens of each row (schema CONTEXTS) by `method`; None where it is not finite.

    Batches depend only on the rows and the budget.
    """
    from closelook.lrp_core.neurons.contexts import Context, explain_contexts

    relevance: list[Sequence[float] | None] = [None] * len(rows)
    for batch in batches([len(row["input_ids"]) for row in rows], token_budget):
        contexts = []
        for row in (rows[index] for index in batch):
            contexts.append(Context(row["input_ids"], row["position"], row["layer"], row["neuron"]))
        for index, of_tokens in zip(batch, explain_contexts(view, contexts, method), strict=True):
            relevance[index] = of_tokens if all(map(math.isfinite, of_tokens)) else None
    return relevance


def combine(opened: Opened, part: Part, values: Sequence[Explained]) -> Made:
    """A row of schema HEATMAPS for each example, in order."""
    rows = [row for value in values for row in value.rows]
    relevance = [of_row for value in values for of_row in value.relevance]
    columns = {name: [row[name] for row in rows] for name in ("layer", "neuron", "rank")}
    table = pa.table(columns | {"relevance": relevance}, schema=SCHEMA)
    return Made(table, splits=sum(value.splits for value in values))


def _entries(run: Run, node: HeatmapsNode) -> dict[str, Any]:
    """The names of the examples and of the cells that rank the neurons, as entries of the manifest."""
    return {"contexts": node.contexts.name, "neurons": [cell.name for cell in node.neurons]}


HEATMAPS = Product(
    name="heatmaps",
    title="sets of heat maps",
    stage="neurons",
    nodes=nodes,
    schema=lambda dtype: SCHEMA,
    units=units,
    compute=compute,
    combine=combine,
    entries=_entries,
    turns=(1,),
)
