"""Models with random weights, samples of random tokens, and the bare passes that methods are compared with."""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
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


def title_of(geometry: Geometry, quick: bool) -> str:
    """The name of a geometry for results, which says whether it is shrunk or lacks layers."""
    layers = GEOMETRIES[geometry.name].layers
    if quick:
        return f"{geometry.name} shrunk"
    return geometry.name if geometry.layers == layers else f"{geometry.name}, {geometry.layers} of {layers} layers"


def drawn(geometry: Geometry, chosen: argparse.Namespace, labels: Sequence[str] = ()) -> ModelView:
    """A model of the geometry with random weights, in the precision and on the device that the options choose."""
    return random_model(geometry.config(labels), dtype=chosen.dtype, attn="sdpa", device=chosen.device)


def rows_like_sva(view: ModelView, count: int) -> list[dict[str, Any]]:
    """Rows of random samples with lengths as in sva, in random order, for `Batch.collate`."""
    lengths = LENGTHS[view.kind.name]
    drawn_lengths = [lengths[i % len(lengths)] for i in range(count)]
    random.Random(0).shuffle(drawn_lengths)
    return random_rows(view, drawn_lengths)


def sva_like(view: ModelView, count: int) -> list[Batch]:
    """Batches of one random sample each, with lengths as in sva, on the model's device."""
    return [alone(row).to(view.device) for row in rows_like_sva(view, count)]


def random_sample(view: ModelView, length: int, count: int = 1) -> Batch:
    """A batch of `count` samples of `length` random tokens each, on the model's device."""
    return Batch.collate(random_rows(view, [length] * count), pad_id=0).to(view.device)


def alone(row: dict[str, Any]) -> Batch:
    """The row as a batch of its own."""
    return Batch.collate([row], pad_id=0)


@torch.inference_mode()
def forward(view: ModelView, batch: Batch) -> Tensor:
    """The stock model's logits [B, V] where the first sample predicts."""
    inputs = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
    output = view.model.base_model(**inputs, **({"use_cache": False} if view.kind.causal else {}))
    return view.unembedding(view.head(output.last_hidden_state[:, int(batch.position[0])]))


def forward_and_backward(view: ModelView, batch: Batch) -> Tensor:
    """The gradient of the target's logit at the token embeddings, without any of our rules."""
    with torch.enable_grad():
        token = view.token_embedding(batch.input_ids).detach().requires_grad_()
        with view.token_embedding.register_forward_hook(lambda *_: token):
            logits = view.logits(batch)
        (gradient,) = torch.autograd.grad(logits[:, 0].sum(), token)
    return gradient
