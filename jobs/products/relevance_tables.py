"""Turns explained batches into rows of the store's schemas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from closelook.evaluation.schema import RELEVANCE, RUNTIME
from closelook.jobs.config.neurons import MOST
from closelook.jobs.plan.cells import schema_of
from closelook.jobs.plan.units import NO_FOIL
from closelook.jobs.products.explaining import ExplainedBatch
from closelook.jobs.products.record import Reject
from closelook.lrp_core import POOLINGS, Relevance, Request
from closelook.lrp_core.neurons.logit_lens import top_neurons
from closelook.lrp_core.places.boundaries import REASONS


def cell_table(
    product: str, dtype: str, requests: Sequence[Request], explained: Sequence[ExplainedBatch]
) -> tuple[pa.Table, list[Reject]]:
    """The table of one cell, and its rejects: samples without anything to explain or with numbers that are not finite.

    A table has the schema of `product` in precision `dtype`, and a row for each sample and request. In tables of layers
    and heads, a sample and request have several rows: one for each layer or pooling.
    """
    schema = schema_of(product, dtype)
    columns = COLUMNS[product]
    tables: list[pa.Table] = []
    rejects: list[Reject] = []
    for batch in explained:
        possible = [request for request in requests if request in batch.relevance]
        unusable = _unusable(batch, possible, dtype)
        rejects += unusable.values()
        keep = [i for i in range(len(batch.rows)) if i not in unusable]
        for request in possible if keep else ():
            tables += columns(KeptRows(batch, request, keep), schema)
    return pa.concat_tables(tables) if tables else schema.empty_table(), rejects


def runtime_table(unit: str, explained: Sequence[ExplainedBatch], device: str) -> pa.Table:
    """The timings of all passes over a unit's batches, in schema RUNTIME."""
    rows = []
    for i, batch in enumerate(explained):
        rows += [{"batch_id": f"{unit}/{i}", **asdict(timing), "device": device} for timing in batch.timings]
    return pa.Table.from_pylist(rows, schema=RUNTIME)


def with_earlier(timed: pa.Table, earlier: pa.Table) -> pa.Table:
    """`timed`, and before it the rows of `earlier` whose passes `timed` does not have."""
    is_again = pc.is_in(earlier["method"], timed["method"])
    return pa.concat_tables([earlier.filter(pc.invert(is_again)), timed])


def _unusable(batch: ExplainedBatch, requests: Sequence[Request], dtype: str) -> dict[int, Reject]:
    """Rejects, by index of the row in the batch, for rows that the cell cannot have."""
    names = [row["sample_id"] for row in batch.rows]
    if not requests:  # the batch has no foils, and all requests are contrastive
        detail = "a contrastive explanation needs a foil"
        return {i: Reject(name, NO_FOIL, detail) for i, name in enumerate(names)}
    finite = torch.ones(len(names), dtype=torch.bool)
    for request in requests:
        finite &= batch.relevance[request].finite
    detail = f"relevance is not finite in {dtype}"
    return {i: Reject(names[i], "not_finite", detail) for i in torch.nonzero(~finite).flatten().tolist()}


@dataclass(frozen=True)
class KeptRows:
    """The rows of a batch that a table is to have, and their relevance for one request."""

    batch: ExplainedBatch
    request: Request
    keep: list[int]  # indices of the rows in the batch

    @property
    def relevance(self) -> Relevance:
        """The relevance of all rows of the batch."""
        return self.batch.relevance[self.request]

    def variant(self) -> dict[str, list[str]]:
        """The columns `sample_id` and `explanation`."""
        return {
            "sample_id": [self.batch.rows[i]["sample_id"] for i in self.keep],
            "explanation": self.repeated(self.request.explanation),
        }

    def logits(self) -> dict[str, Any]:
        """The columns with the logits of target and foil and the predicted token."""
        predicted = [self.batch.rows[i].get("predicted_id") for i in self.keep]
        return {
            "logit_target": self.floats(self.relevance.logit_target),
            "logit_foil": self.floats(self.relevance.logit_foil),
            "predicted_id": pa.array(predicted, pa.int32()),
        }

    def repeated(self, value: Any) -> list[Any]:
        """The column with the same value in every row."""
        return [value] * len(self.keep)

    def tokens(self, values: torch.Tensor, kind: pa.ListType, ids: str = "input_ids") -> pa.Array:
        """These rows of `values` [B, T], without padding: each as long as the row's tokens in column `ids`."""
        lengths = [len(self.batch.rows[i][ids]) for i in self.keep]
        flat = torch.cat([values[i, :length] for i, length in zip(self.keep, lengths, strict=True)])
        return _ragged(flat.to(_torch_type(kind)).numpy(), lengths, kind)

    def floats(self, values: torch.Tensor | None) -> np.ndarray | pa.Array:
        """These entries of a tensor [B], in float64; nulls if there is no tensor."""
        return pa.nulls(len(self.keep), pa.float64()) if values is None else values[self.keep].double().numpy()


def relevance_columns(rows: KeptRows, schema: pa.Schema) -> list[pa.Table]:
    """A table with a row for each of `rows`: the relevance of tokens and pixels, logits and residual."""
    relevance = rows.relevance
    pixels, decoder_relevance = (
        pa.nulls(len(rows.keep), schema.field(name).type) for name in ("pixels", "decoder_relevance")
    )
    if relevance.pixels is not None:
        pixels = _alike(relevance.pixels[rows.keep], pixels.type)
    if relevance.decoder_tokens is not None:
        decoder_relevance = rows.tokens(relevance.decoder_tokens, decoder_relevance.type, "decoder_input_ids")
    columns: dict[str, Any] = rows.variant() | rows.logits()
    columns["embedding"] = rows.repeated(rows.request.embedding)
    columns["relevance"] = rows.tokens(relevance.tokens, schema.field("relevance").type)
    columns |= {"explained": rows.floats(relevance.explained), "residual": rows.floats(relevance.residual)}
    columns |= {"pixels": pixels, "decoder_relevance": decoder_relevance}
    return [pa.table(columns, schema=schema)]


def labels_columns(rows: KeptRows, schema: pa.Schema) -> list[pa.Table]:
    """As `relevance_columns`, for the relevance of tokens to one label, with the label's number as `label_id`."""
    of_target = relevance_columns(rows, RELEVANCE)[0]
    shared = {name: of_target[name] for name in schema.names if name != "label_id"}
    label = pa.array(rows.repeated(rows.request.label), schema.field("label_id").type)
    return [pa.table({**shared, "label_id": label}).select(schema.names).cast(schema)]


def _alike(values: torch.Tensor, kind: pa.ListType) -> pa.Array:
    """The rows of a tensor [n, ...] as lists of equal length."""
    flat = values.flatten(1)
    return _ragged(flat.flatten().to(_torch_type(kind)).numpy(), [flat.shape[1]] * len(flat), kind)


def _torch_type(kind: pa.ListType) -> torch.dtype:
    """The torch type of the numbers in lists of type `kind`."""
    return torch.float64 if kind.value_type == pa.float64() else torch.float32


def heads_columns(rows: KeptRows, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield a table for each pooling, with a row for each of `rows`: the relevance of heads, lists of L * H numbers."""
    heads = rows.relevance.heads
    if heads is None:
        raise ValueError(f"{rows.request.method} gave no relevance of heads, which its record promises in `given`")
    for p, pooling in enumerate(POOLINGS):
        lists = _alike(heads[rows.keep, :, :, p], schema.field("relevance").type)  # [n, L * H]
        columns = {**rows.variant(), "pooling": rows.repeated(pooling), "relevance": lists}
        yield pa.table(columns, schema=schema)


def layers_columns(rows: KeptRows, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield a table for each layer, with a row for each of `rows`: the relevance of tokens in that layer's map."""
    layers = rows.relevance.layers
    if layers is None:
        raise ValueError(f"{rows.request.method} gave no relevance by layer, which its record promises in `given`")
    shared = {**rows.variant(), "embedding": rows.repeated(rows.request.embedding), **rows.logits()}
    for layer in range(layers.shape[1]):
        tokens = rows.tokens(layers[:, layer], schema.field("relevance").type)
        columns = {**shared, "layer": rows.repeated(layer + 1), "relevance": tokens}
        yield pa.table(columns, schema=schema)


def neurons_columns(rows: KeptRows, schema: pa.Schema) -> list[pa.Table]:
    """A table with a row for each of `rows`: the neurons with the largest relevance, in lists.

    A row has each layer's total, too, and relevance at layer boundaries if it was computed.
    """
    relevance, names = rows.relevance, rows.batch.names
    if relevance.neurons is None:
        raise ValueError(f"{rows.request.method} gave no relevance of neurons, which its record promises in `given`")
    assert names is not None
    entries = []
    tops = top_neurons(relevance, MOST)
    for i in rows.keep:
        entry: dict[str, Any] = {"sample_id": rows.batch.rows[i]["sample_id"], "explanation": rows.request.explanation}
        for column in ("layer", "neuron", "relevance", "position"):
            entry[column] = [getattr(neuron, column) for neuron in tops[i]]
        entry["name"] = [names.of(neuron.layer, neuron.neuron) for neuron in tops[i]]
        entry["activation"] = [neuron.value for neuron in tops[i]]
        entry["layer_relevance"] = relevance.neurons[i].sum(-1).tolist()
        if relevance.boundaries is not None and relevance.peaks is not None and relevance.kept is not None:
            by_reason = zip(REASONS, relevance.kept[i].unbind(-1), strict=True)
            entry |= {f"kept_by_{reason}": of.tolist() for reason, of in by_reason}
            entry |= {"boundaries": relevance.boundaries[i].tolist(), "peaks": relevance.peaks[i].tolist()}
        entries.append(entry)
    return [pa.Table.from_pylist(entries, schema=schema)]


def _ragged(flat: np.ndarray, lengths: Sequence[int], kind: pa.ListType) -> pa.ListArray:
    """Lists of these lengths, cut from `flat` one after another."""
    offsets = pa.array(np.cumsum([0, *lengths]), pa.int32())
    return pa.ListArray.from_arrays(offsets, pa.array(flat, kind.value_type))


#: By product: makes the tables of a batch.
COLUMNS: dict[str, Callable[[KeptRows, pa.Schema], Iterable[pa.Table]]] = {
    "relevance": relevance_columns,
    "heads": heads_columns,
    "layers": layers_columns,
    "labels": labels_columns,
    "neurons": neurons_columns,
}
