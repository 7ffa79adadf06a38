"""The words of neurons: which ones on the driver, what they are in a worker, which has the model open."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from evaluation.schema import NEURONS, WRITINGS
from jobs.config import RunConfig
from jobs.plan.inputs import without_samples
from jobs.plan.products.writings import WritingsCell
from jobs.store import Artifact, Ledger

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from lrp_core import ModelView

COUNT = 10  # words of either end


@dataclass(frozen=True)
class WritingTask:
    """Neurons of a model whose words are looked up together."""

    title: str
    path: str
    neurons: tuple[tuple[int, int], ...]  # by layer and number


def block_of(ledger: Ledger, cell: WritingsCell) -> pa.Table:
    """The unit of all neurons that the cells name."""
    title = f"writings.{cell.artifact.model}.{cell.artifact.dtype}"
    return without_samples(WritingTask(title, _path(cell), named_by(ledger, cell.of)))


def named_by(ledger: Ledger, cells: Iterable[Artifact], ranks: int | None = None) -> tuple[tuple[int, int], ...]:
    """The neurons, layer and number, that cells keep, in ascending order; of each sample the first `ranks`."""
    named: set[tuple[int, int]] = set()
    for neurons in cells:
        table = ledger.read(neurons, NEURONS, ["layer", "neuron"])
        first = (pc.list_slice(table[name], 0, ranks) for name in ("layer", "neuron"))
        named |= set(zip(*(pc.list_flatten(column).to_pylist() for column in first), strict=True))
    return tuple(sorted(named))


def complete(config: RunConfig, ledger: Ledger, cell: WritingsCell) -> None:
    """Enter what is there."""
    present = ledger.sizes(cell.artifact)
    if cell.artifact.shard() in present:
        record = {
            "shards": [cell.artifact.shard()],
            "model": {"identity": cell.model.resolved.identity, "id": cell.model.resolved.config.id},
        }
        ledger.commit(cell.artifact, record, config=config.model_dump(mode="json"), sizes=present)


def written(view: ModelView, tokenizer: PreTrainedTokenizerBase, task: WritingTask) -> pa.Table:
    """The table of schema WRITINGS."""
    return pa.Table.from_pylist(list(_rows(view, tokenizer, task)), schema=WRITINGS)


def _rows(view: ModelView, tokenizer: PreTrainedTokenizerBase, task: WritingTask) -> Iterator[dict[str, Any]]:
    from lrp_core.neurons import keys_of, writes_words, writings_of

    if not writes_words(view):
        return

    def words(listed: tuple[tuple[int, float], ...], name: str, number: str) -> dict[str, Any]:
        return {name: [tokenizer.decode([token]) for token, _ in listed], number: [value for _, value in listed]}

    by_layer: dict[int, list[int]] = {}
    for layer, neuron in task.neurons:
        by_layer.setdefault(layer, []).append(neuron)
    for layer, neurons in by_layer.items():
        told = zip(neurons, writings_of(view, layer, neurons, COUNT), keys_of(view, layer, neurons, COUNT), strict=True)
        for neuron, writing, key in told:
            promoted = words(writing.promoted, "promoted", "promoted_logit")
            suppressed = words(writing.suppressed, "suppressed", "suppressed_logit")
            facts = {"layer": layer, "neuron": neuron, "entropy": writing.entropy}
            yield facts | promoted | suppressed | words(key, "key", "key_cosine")


def _path(cell: WritingsCell) -> str:
    return f"{cell.artifact.folder}/{cell.artifact.shard()}"
