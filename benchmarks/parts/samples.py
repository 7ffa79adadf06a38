"""Models with random weights, and samples of random tokens with lengths as in the task sva."""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from closelook.jobs.geometries import GEOMETRIES, Geometry
from closelook.lrp_core import Batch, ModelView, random_model
from closelook.lrp_core.verification.samples import random_rows

#: Deciles of the numbers of tokens of the first 1000 sva samples under GPT-2's tokenizer. Causal models read the words
#: before the verb, masked models the whole sentence.
LENGTHS = {
    "causal": (4, 5, 6, 7, 8, 9, 10, 12, 16, 26),
    "masked": (14, 18, 21, 24, 27, 31, 34, 39, 44, 54),
}


def geometry_of(name: str, quick: bool, layers: int | None = None) -> Geometry:
    """The named geometry; with `quick`, a small one of its family. It has at most `layers` layers."""
    geometry = GEOMETRIES[name].shrunk() if quick else GEOMETRIES[name]
    return replace(geometry, layers=min(geometry.layers, layers or geometry.layers))


def title_of(name: str, geometry: Geometry, quick: bool) -> str:
    """The name of a geometry, with the number of its layers if some were left out."""
    layers = geometry_of(name, quick).layers
    return name if geometry.layers == layers else f"{name}, {geometry.layers} of {layers} layers"


def drawn(
    geometry: Geometry, chosen: argparse.Namespace, kernel: str = "sdpa", labels: Sequence[str] = ()
) -> ModelView:
    """A model of the geometry with random weights, in the precision and on the device that the options choose."""
    return random_model(geometry.config(labels), dtype=chosen.dtype, attn=kernel, device=chosen.device)


def model_of(name: str, chosen: argparse.Namespace, labels: Sequence[str] = ()) -> ModelView:
    """A model of a named geometry with random weights; with `labels`, a classifier.

    The options choose its number of layers, its precision and its device.
    """
    return drawn(geometry_of(name, chosen.quick, chosen.layers), chosen, labels=labels)


def sva_like(view: ModelView, count: int) -> list[Batch]:
    """Batches of one random sample each, with lengths as in sva, on the model's device."""
    return [alone(row).to(view.device) for row in rows_like_sva(view, count)]


def rows_like_sva(view: ModelView, count: int) -> list[dict[str, Any]]:
    """Rows of random samples with lengths as in sva, in random order, for `Batch.collate`."""
    lengths = LENGTHS[view.kind.name]
    drawn_lengths = [lengths[i % len(lengths)] for i in range(count)]
    random.Random(0).shuffle(drawn_lengths)
    return random_rows(view, drawn_lengths)


def random_sample(view: ModelView, length: int, count: int = 1) -> Batch:
    """A batch of `count` samples of `length` random tokens each, on the model's device."""
    return Batch.collate(random_rows(view, [length] * count), pad_id=0).to(view.device)


def logits_at(view: ModelView, position: int, **inputs: Tensor) -> Tensor:
    """All logits [R, V] at one position, by a bare forward pass of the backbone and the head."""
    output = view.model.base_model(**inputs, **view.kind.forward_options)
    return view.unembedding(view.head(output.last_hidden_state[:, position]))


def alone(row: dict[str, Any]) -> Batch:
    """The row as a batch of its own."""
    return Batch.collate([row], pad_id=0)
