"""The baselines of `closelook bench alti`.

One holds all transformed vectors in memory at once; the other computes the matrix products and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn

from alti.layers import Layer, visiting
from alti.threads import run_all, without_python
from alti.transformed import Chunk, extents, slices, value_output
from lrp_core import Batch, ModelView

_PRODUCT_BYTES = 2**22  # of a product's output: smaller products are slower


@torch.inference_mode()
def materialising(view: ModelView, batch: Batch) -> Tensor:
    """Attention's share of the logit difference by input token [T], for one unpadded sample of a GPT-2.

    This works in the order of the implementation of Ferrando et al. 2023: the transformed vectors [H, T, T, D] of all
    heads and all destinations exist at once, and the final norm is applied to them as products with its matrices. In
    one point this baseline is faster than theirs, which computes everything twice: with the biases of the value path
    and without them.
    """
    layers: list[Layer] = []
    states: list[Tensor] = []
    assert view.final_norm is not None
    hook = view.final_norm.module.register_forward_pre_hook(lambda _, args: states.append(args[0][0]))
    with visiting(view, layers.append):
        view.hidden(batch)
    hook.remove()
    assert batch.foil_ids is not None
    rows, _ = view.unembedding_rows(torch.stack([batch.target_ids[0], batch.foil_ids[0]]))  # [2, D]
    mixed = torch.eye(len(states[0]), dtype=rows.dtype, device=rows.device)
    tokens = rows.new_zeros(len(states[0]))
    position = int(batch.position[0])
    for layer in layers:
        vectors, bias = _vectors(layer)  # [H, Ti, Tj, D]
        by_head = torch.einsum("hijd,vd->hivj", _through_final_norm(view, vectors, states[0]), rows)
        logits = by_head.sum(0)  # [Ti, 2, Tj]
        tokens += (logits[position, 0] - logits[position, 1]) @ mixed
        mixed = _map(layer, vectors.sum(0), bias) @ mixed
    return tokens


def bare_products(layer: Layer, chunk: Chunk) -> Callable[[], None]:
    """A function that computes the matrix products of one sample's attention block and of its map, and nothing else.

    It uses as many threads as `chunk` has workers, blocks of the size that is fastest for products alone, and the same
    output buffers again and again.
    """
    heads, key_heads, head_dim = layer.query.shape[1], layer.key.shape[1], layer.query.shape[-1]
    x = layer.residual[0]
    length, width = x.shape
    query, values, weights = layer.query[0], layer.values()[0], layer.weights()[0]  # weights [H, Tj, Ti]
    keys = layer.key[0].repeat_interleave(heads // key_heads, 0)
    output, _ = layer.block.output_weights()
    context = x.new_empty(length, heads * head_dim).normal_()
    projections = [x.new_empty(width, n * head_dim).normal_() for n in (heads, key_heads, key_heads)]
    held = extents(1, length, chunk)[1]
    rows = max(1, _PRODUCT_BYTES // (4 * width))
    buffers = [(x.new_empty(min(rows, length), width), x.new_empty(held * heads * width)) for _ in range(chunk.workers)]

    def transformed(groups: Iterator[slice], vectors: Tensor, products: Tensor) -> None:
        for group in groups:
            some = value_output(values[None, :, group], output, products)[0]
            _causal_products(weights[:, group], some, vectors, group.start, rows)

    def run() -> None:
        for projection in projections:
            torch.mm(x, projection)
        torch.bmm(keys, query.transpose(1, 2))
        torch.bmm(weights.transpose(1, 2), values)
        torch.mm(context, output.flatten(0, 1))
        groups = iter(list(slices(0, length, held)))  # for all workers
        run_all([partial(transformed, groups, *pair) for pair in buffers])

    return run


@without_python
def _causal_products(weights: Tensor, products: Tensor, buffer: Tensor, first: int, rows: int) -> None:
    """Multiplies weights [H, Tj, Ti] by products [Tj, H, D], for each source j and the destinations i that see it."""
    for j in range(weights.size(1)):
        for i in range(first + j, weights.size(2), rows):
            some = weights[:, j, i : i + rows].t()
            torch.mm(some, products[j], out=buffer[: some.size(0)])


def _vectors(layer: Layer) -> tuple[Tensor, Tensor]:
    """The transformed vectors [H, Ti, Tj, D] of a layer, and the bias [D] of its attention output."""
    output, bias = layer.block.output_weights()
    assert bias is not None
    value_output = torch.einsum("hjk,hkd->hjd", layer.values()[0], output)
    return torch.einsum("hjd,hji->hijd", value_output, layer.weights()[0]), bias


def _map(layer: Layer, vectors: Tensor, bias: Tensor) -> Tensor:
    """Contributions [Ti, Tj] from transformed vectors [Ti, Tj, D]."""
    vectors = vectors + torch.einsum("ij,id->ijd", torch.eye(len(vectors)).to(vectors), layer.residual[0])
    resultant = vectors.sum(1) + bias
    distance = nn.functional.pairwise_distance(vectors, resultant.unsqueeze(1), p=1, eps=0)
    contributions = (resultant.abs().sum(-1, keepdim=True) - distance).clamp_min(0)
    return contributions / contributions.sum(-1, keepdim=True)


def _through_final_norm(view: ModelView, vectors: Tensor, states: Tensor) -> Tensor:
    """The vectors [H, Ti, Tj, D] after the final norm, linearised at the states [Ti, D].

    The norm is applied as products with its matrices.
    """
    assert view.final_norm is not None
    weight, _ = view.final_norm.parameters()
    centring = torch.eye(len(weight)).to(weight) - 1 / len(weight)
    deviation = (states.var(-1, unbiased=False) + view.final_norm.eps).sqrt()
    return torch.einsum("hije,ef,fg->hijg", vectors, centring, torch.diag(weight)) / deviation[:, None, None]
