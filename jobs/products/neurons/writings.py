"""The logit lens of neurons: the words that a neuron promotes and suppresses, and those that make it active.

It is computed for the neurons that a run keeps. Keys cover the model and the relevance that ranks the neurons.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from closelook.evaluation.schema import NEURONS, titled
from closelook.evaluation.schema import WRITINGS as SCHEMA
from closelook.jobs.config import RunConfig
from closelook.jobs.plan.node import ModelPlan, Node, Part, Run
from closelook.jobs.products.neurons.knockouts import knockouts_of
from closelook.jobs.products.record import Made, Opened, Product, Row, Unit
from closelook.jobs.store import Artifact, Ledger

VERSION = 2  # raised when numbers change: stored ones of older versions are stale
COUNT = 10  # words of each kind: promoted, suppressed, activating


def nodes(run: Run) -> Iterator[Node]:
    """The node of each model whose neurons are ablated and that reads text."""
    for model in run.plan.models:
        node = writings_of(run.config, model, run.ledger)
        if node is not None:
            yield node


def writings_of(config: RunConfig, model: ModelPlan, ledger: Ledger) -> Node | None:
    """The node of the logit lens (`writings`) of the neurons that the run keeps of a model.

    None if the run ablates none of the model's neurons, and for models of images, which have no words. The precision is
    that of the ablation.
    """
    first_knockout = next(knockouts_of(config, model, ledger), None)
    if first_knockout is None or model.resolved.kind.images:
        return None
    cells = tuple(cell.artifact for cell in model.cells if cell.artifact.product == "neurons")
    return Node(
        artifact=Artifact("writings", model.name, dtype=first_knockout.artifact.dtype),
        key_fields={
            "version": VERSION,
            "schema": titled(SCHEMA),
            "model": model.resolved.identity,
            "neurons": [cell.key for cell in cells],
        },
        samples=1,
        made_of=cells,
        model=model,
    )


def units(run: Run, nodes: Sequence[Node]) -> Iterator[Unit]:
    """A single unit, with a row for each neuron that the cells keep."""
    (node,) = nodes
    rows = [
        {"sample_id": f"{layer}.{neuron}", "layer": layer, "neuron": neuron}
        for layer, neuron in kept_neurons(run.ledger, node.made_of)
    ]
    yield Unit("", (Part(node, ""),), rows, tokens=max(1, len(rows)), size=1)


def kept_neurons(ledger: Ledger, cells: Iterable[Artifact], ranks: int | None = None) -> tuple[tuple[int, int], ...]:
    """(layer, number) of every neuron that `cells` keep for some sample, ascending.

    With `ranks`, only the first `ranks` neurons of each sample count.
    """
    named: set[tuple[int, int]] = set()
    for cell in cells:
        table = ledger.read(cell, NEURONS, ["layer", "neuron"])  # a row for each sample, with a list in each column
        first = (pc.list_slice(table[name], 0, ranks) for name in ("layer", "neuron"))
        named |= set(zip(*(pc.list_flatten(column).to_pylist() for column in first), strict=True))
    return tuple(sorted(named))


def compute(opened: Opened, parts: Sequence[Part], rows: Sequence[Row]) -> Mapping[Part, Made]:
    """The words of the neurons in `rows`, which have a layer and a number."""
    (part,) = parts
    return {part: Made(pa.Table.from_pylist(list(_words(opened, rows)), schema=SCHEMA))}


def _words(opened: Opened, rows: Sequence[Row]) -> Iterator[Row]:
    """Yield a row of schema WRITINGS for each neuron; none if neurons are not as wide as the unembedding."""
    from closelook.lrp_core.neurons.logit_lens import keys_of, writes_words, writings_of

    view, tokenizer = opened.view, opened.tokenizer
    if not writes_words(view):
        return

    def words(listed: tuple[tuple[int, float], ...], name: str, number: str) -> dict[str, Any]:
        return {name: [tokenizer.decode([token]) for token, _ in listed], number: [value for _, value in listed]}

    by_layer: dict[int, list[int]] = {}
    for row in rows:
        by_layer.setdefault(row["layer"], []).append(row["neuron"])
    for layer, neurons in by_layer.items():
        writings = writings_of(view, layer, neurons, COUNT)
        keys = keys_of(view, layer, neurons, COUNT)
        for neuron, writing, key in zip(neurons, writings, keys, strict=True):
            promoted = words(writing.promoted, "promoted", "promoted_logit")
            suppressed = words(writing.suppressed, "suppressed", "suppressed_logit")
            facts = {"layer": layer, "neuron": neuron, "entropy": writing.entropy}
            yield facts | promoted | suppressed | words(key, "key", "key_cosine")


WRITINGS = Product(
    name="writings",
    title="sets of words",
    stage="neurons",
    nodes=nodes,
    schema=lambda dtype: SCHEMA,
    units=units,
    compute=compute,
    turns=(2,),
)
