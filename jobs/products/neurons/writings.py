"""The logit lens of neurons: words that the neurons which a run keeps promote and suppress, and that make them active.

They are keyed by the model and the relevance that names the neurons.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from evaluation.schema import NEURONS, titled
from evaluation.schema import WRITINGS as SCHEMA
from jobs.config import RunConfig
from jobs.plan.node import ModelPlan, Node, Part, Run
from jobs.products.neurons.knockouts import knockouts_of
from jobs.products.record import Made, Opened, Product, Row, Unit, of_no_task
from jobs.store import Artifact, Ledger

VERSION = 2  # raised when numbers change: stored ones of older versions are stale
COUNT = 10  # words of either end


def nodes(run: Run) -> Iterator[Node]:
    """The words of every model whose neurons are ablated, and which reads words."""
    for model in run.plan.models:
        node = writings_of(run.config, model, run.ledger)
        if node is not None:
            yield node


def writings_of(config: RunConfig, model: ModelPlan, ledger: Ledger) -> Node | None:
    """The words of a model's neurons; None where none are ablated."""
    ablated = next(knockouts_of(config, model, ledger), None)
    if ablated is None or model.resolved.kind.images:
        return None
    cells = tuple(cell.artifact for cell in model.cells if cell.artifact.product == "neurons")
    return Node(
        artifact=Artifact("writings", model.name, dtype=ablated.artifact.dtype),
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
    """All neurons that the cells name."""
    (node,) = nodes
    rows = [
        {"sample_id": f"{layer}.{neuron}", "layer": layer, "neuron": neuron}
        for layer, neuron in named_by(run.ledger, node.made_of)
    ]
    yield Unit("", (Part(node, ""),), rows, tokens=max(1, len(rows)), size=1)


def named_by(ledger: Ledger, cells: Iterable[Artifact], ranks: int | None = None) -> tuple[tuple[int, int], ...]:
    """The neurons, layer and number, that cells keep, in ascending order; of each sample the first `ranks`."""
    named: set[tuple[int, int]] = set()
    for neurons in cells:
        table = ledger.read(neurons, NEURONS, ["layer", "neuron"])
        first = (pc.list_slice(table[name], 0, ranks) for name in ("layer", "neuron"))
        named |= set(zip(*(pc.list_flatten(column).to_pylist() for column in first), strict=True))
    return tuple(sorted(named))


def compute(opened: Opened, parts: Sequence[Part], rows: Sequence[Row]) -> Mapping[Part, Made]:
    """The words of neurons, given as rows of their layers and numbers."""
    (part,) = parts
    return {part: Made(pa.Table.from_pylist(list(_words(opened, rows)), schema=SCHEMA))}


def _words(opened: Opened, rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    from lrp_core.neurons.logit_lens import keys_of, writes_words, writings_of

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
    expected=of_no_task,
    schema=lambda dtype: SCHEMA,
    units=units,
    compute=compute,
)
