"""Turns explained batches into rows of the store's schemas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from evaluation.schema import RELEVANCE, RUNTIME
from jobs.config.neurons import MOST
from jobs.plan.cells import schema_of
from jobs.plan.finer import KEPT
from jobs.plan.units import NO_FOIL
from jobs.products.explaining import ExplainedBatch
from jobs.products.record import Reject
from lrp_core import POOLINGS, Relevance, Request
from lrp_core.lazy import imported_object
from lrp_core.neurons.logit_lens import top_neurons
from lrp_core.rules.boundaries import REASONS


def cell_table(
    product: str, dtype: str, requests: Sequence[Request], explained: Sequence[ExplainedBatch]
) -> tuple[pa.Table, list[Reject]]:
    """The table of one cell, and its rejects: samples without anything to explain or with numbers that are not finite.

    A table has the schema of `product` in precision `dtype`, and a row for each sample and request. In tables of layers
    and heads, a sample and request have several rows: one for each layer or pooling.
    """
    schema = schema_of(product, dtype)
    columns = imported_object(KEPT[product].columns) if product in KEPT else relevance_columns
    tables: list[pa.Table] = []
    rejects: list[Reject] = []
    for batch in explained:
        possible = [request for request in requests if request in batch.relevance]
        unusable = _unusable(batch, possible, dtype)
        rejects += unusable.values()
        keep = [i for i in range(len(batch.rows)) if i not in unusable]
        for request in possible if keep else ():
            tables += columns(batch, request, batch.relevance[request], keep, schema)
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
    """Rejects, by index of the row in the batch, for rows that the cell cannot have.

    These are all rows if no request could be computed, for want of foils, and rows for which some request's relevance
    is not finite.
    """
    names = [row["sample_id"] for row in batch.rows]
    if not requests:  # the batch has no foils, and all requests are contrastive
        detail = "a contrastive explanation needs a foil"
        return {i: Reject(name, NO_FOIL, detail) for i, name in enumerate(names)}
    finite = torch.ones(len(names), dtype=torch.bool)
    for request in requests:
        finite &= batch.relevance[request].finite
    detail = f"relevance is not finite in {dtype}"
    return {i: Reject(names[i], "not_finite", detail) for i in torch.nonzero(~finite).flatten().tolist()}


def relevance_columns(
    batch: ExplainedBatch, request: Request, relevance: Relevance, keep: list[int], schema: pa.Schema
) -> list[pa.Table]:
    """A table with a row for each of the rows `keep`: the relevance of tokens and pixels, logits and residual."""
    pixels = pa.nulls(len(keep), schema.field("pixels").type)
    decoder_relevance = pa.nulls(len(keep), schema.field("decoder_relevance").type)
    if relevance.pixels is not None:
        pixels = _alike(relevance.pixels[keep], pixels.type)
    if relevance.decoder_tokens is not None:
        decoder_relevance = _of_tokens(
            batch, "decoder_input_ids", relevance.decoder_tokens, keep, decoder_relevance.type
        )
    columns: dict[str, Any] = {
        **_of_variant(batch, request, keep),
        "embedding": [request.embedding] * len(keep),
        "relevance": _of_tokens(batch, "input_ids", relevance.tokens, keep, schema.field("relevance").type),
        "explained": _floats(relevance.explained, keep),
        "residual": _floats(relevance.residual, keep),
        **_of_logits(batch, relevance, keep),
        "pixels": pixels,
        "decoder_relevance": decoder_relevance,
    }
    return [pa.table(columns, schema=schema)]


def _of_variant(batch: ExplainedBatch, request: Request, keep: list[int]) -> dict[str, list[str]]:
    """The columns `sample_id` and `explanation` for the rows `keep`."""
    return {
        "sample_id": [batch.rows[i]["sample_id"] for i in keep],
        "explanation": [request.explanation] * len(keep),
    }


def _of_logits(batch: ExplainedBatch, relevance: Relevance, keep: list[int]) -> dict[str, Any]:
    """The columns with the logits of target and foil and the predicted token, for the rows `keep`."""
    predicted = [batch.rows[i].get("predicted_id") for i in keep]
    return {
        "logit_target": _floats(relevance.logit_target, keep),
        "logit_foil": _floats(relevance.logit_foil, keep),
        "predicted_id": pa.array(predicted, pa.int32()),
    }


def labels_columns(
    batch: ExplainedBatch, request: Request, relevance: Relevance, keep: list[int], schema: pa.Schema
) -> list[pa.Table]:
    """As `relevance_columns`, for the relevance of tokens to one label, with the label's number as `label_id`."""
    of_target = relevance_columns(batch, request, relevance, keep, RELEVANCE)[0]
    shared = {name: of_target[name] for name in schema.names if name != "label_id"}
    label = pa.array([request.label] * len(keep), schema.field("label_id").type)
    return [pa.table({**shared, "label_id": label}).select(schema.names).cast(schema)]


def _of_tokens(batch: ExplainedBatch, ids: str, values: torch.Tensor, keep: list[int], kind: pa.ListType) -> pa.Array:
    """The rows `keep` of `values` [B, T], without padding: each as long as the row's tokens in column `ids`."""
    lengths = [len(batch.rows[i][ids]) for i in keep]
    flat = torch.cat([values[i, :length] for i, length in zip(keep, lengths, strict=True)])
    return _ragged(flat.to(_torch_type(kind)).numpy(), lengths, kind)


def _alike(values: torch.Tensor, kind: pa.ListType) -> pa.Array:
    """The rows of a tensor [n, ...] as lists of equal length."""
    flat = values.flatten(1)
    return _ragged(flat.flatten().to(_torch_type(kind)).numpy(), [flat.shape[1]] * len(flat), kind)


def _torch_type(kind: pa.ListType) -> torch.dtype:
    """The torch type of the numbers in lists of type `kind`."""
    return torch.float64 if kind.value_type == pa.float64() else torch.float32


def heads_columns(
    batch: ExplainedBatch, request: Request, relevance: Relevance, keep: list[int], schema: pa.Schema
) -> Iterator[pa.Table]:
    """Yield a table for each pooling, with a row for each of `keep`: the relevance of heads, lists of L * H numbers."""
    if relevance.heads is None:
        raise ValueError(f"{request.method} gave no relevance of heads, which its record promises in `given`")
    for p, pooling in enumerate(POOLINGS):
        lists = _alike(relevance.heads[keep, :, :, p], schema.field("relevance").type)  # [n, L * H]
        columns = {**_of_variant(batch, request, keep), "pooling": [pooling] * len(keep), "relevance": lists}
        yield pa.table(columns, schema=schema)


def layers_columns(
    batch: ExplainedBatch, request: Request, relevance: Relevance, keep: list[int], schema: pa.Schema
) -> Iterator[pa.Table]:
    """Yield a table for each layer, with a row for each of `keep`: the relevance of tokens in that layer's map."""
    if relevance.layers is None:
        raise ValueError(f"{request.method} gave no relevance by layer, which its record promises in `given`")
    kind = schema.field("relevance").type
    for layer in range(relevance.layers.shape[1]):
        columns = {
            **_of_variant(batch, request, keep),
            "embedding": [request.embedding] * len(keep),
            "layer": [layer + 1] * len(keep),
            "relevance": _of_tokens(batch, "input_ids", relevance.layers[:, layer], keep, kind),
            **_of_logits(batch, relevance, keep),
        }
        yield pa.table(columns, schema=schema)


def neurons_columns(
    batch: ExplainedBatch, request: Request, relevance: Relevance, keep: list[int], schema: pa.Schema
) -> list[pa.Table]:
    """A table with a row for each of the rows `keep`: the neurons with the largest relevance, in lists.

    A row has each layer's total, too, and relevance at layer boundaries if it was computed.
    """
    if relevance.neurons is None:
        raise ValueError(f"{request.method} gave no relevance of neurons, which its record promises in `given`")
    assert batch.names is not None
    rows = []
    for i, top in zip(range(len(batch.rows)), top_neurons(relevance, MOST), strict=True):
        listed = {
            "layer": [neuron.layer for neuron in top],
            "neuron": [neuron.neuron for neuron in top],
            "name": [batch.names.of(neuron.layer, neuron.neuron) for neuron in top],
            "relevance": [neuron.relevance for neuron in top],
            "position": [neuron.position for neuron in top],
            "activation": [neuron.value for neuron in top],
            "layer_relevance": relevance.neurons[i].sum(-1).tolist(),
        }
        if relevance.boundaries is not None and relevance.peaks is not None and relevance.kept is not None:
            by_reason = zip(REASONS, relevance.kept[i].unbind(-1), strict=False)  # without experts, no last reason
            kept = {f"kept_by_{reason}": of.tolist() for reason, of in by_reason}
            listed |= {"boundaries": relevance.boundaries[i].tolist(), "peaks": relevance.peaks[i].tolist(), **kept}
        rows.append({"sample_id": batch.rows[i]["sample_id"], "explanation": request.explanation, **listed})
    return [pa.Table.from_pylist([rows[i] for i in keep], schema=schema)]


def _ragged(flat: np.ndarray, lengths: Sequence[int], kind: pa.ListType) -> pa.ListArray:
    """Lists of these lengths, cut from `flat` one after another."""
    offsets = pa.array(np.cumsum([0, *lengths]), pa.int32())
    return pa.ListArray.from_arrays(offsets, pa.array(flat, kind.value_type))


def _floats(values: torch.Tensor | None, keep: list[int]) -> np.ndarray | pa.Array:
    """The entries `keep` of a tensor [B], in float64; nulls if there is no tensor."""
    return pa.nulls(len(keep), pa.float64()) if values is None else values[keep].double().numpy()
