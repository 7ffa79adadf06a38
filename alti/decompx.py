"""DecompX (Modarressi et al. 2023): every state as a sum of vectors, one for each input token, up to the logits.

A token's vectors pass attention with its weights as they are, norms with the deviation of their sum, and activations
with the factor that their sum gets. A bias is shared by the sizes of its inner products with the vectors (AbsDot), so
that vectors always sum to the model's own state, and in the end to the logit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from alti.layers import Layer, visiting
from alti.maps import output_weights
from alti.planner import free_bytes
from alti.transformed import slices
from lrp_core.device.precision import wide_dtype
from lrp_core.device.transfer import to_device
from lrp_core.parts.block import BlockView
from lrp_core.parts.linear import LinearLayer
from lrp_core.parts.norms import NormView
from lrp_core.parts.weights import weights_of
from lrp_core.records.explained import explained_by, relevance_of
from lrp_core.records.types import Batch, Request, Results, UserError
from lrp_core.records.variants import unpadded
from lrp_core.rules.activation import activation
from lrp_core.views.view import ModelView

_HIDDEN = 2**24  # numbers of decomposed hidden layers of MLPs at a time
_TINY = 1e-12  # of a bias that no vector has a part in, as published


@torch.no_grad()
def explain_many(
    view: ModelView,
    batch: Batch,
    requests: Sequence[Request],
    *,
    score: str,
    byte_budget: int | None = None,
) -> Results:
    """The part of the explained number that each token's vector adds; of scores, by `score`, its last norm.

    Samples are taken apart one by one, without padding. Raises UserError for a contrastive request without foils, and
    for a budget of bytes, beyond the weights, that does not hold the vectors of a sample.
    """
    on_host, batch = batch.to("cpu"), batch.to(view.device)
    logits = view.logits(view.hidden(batch), batch)
    of_norm = view.predicts_score and score == "norm"
    pairs = logits.new_zeros(*logits.shape, batch.input_ids.shape[1])  # [B, 2, T]
    for i, real in enumerate(on_host.attention_mask.bool()):
        if not real.any():
            continue
        sample = unpadded(on_host, i)
        vectors = last_vectors(view, sample, free_bytes(view.device) if byte_budget is None else byte_budget)
        readings = vectors.norm(dim=-1)[None] if of_norm else _read(view, vectors, sample)
        pairs[i, :, to_device(real.nonzero().flatten(), pairs.device)] = readings.to(pairs)
    results: Results = {}
    for request in requests:
        explained = explained_by(request.explanation)
        tokens = explained.of(pairs).to(batch.input_ids.device)
        results[request] = relevance_of(tokens, logits, explained.of(logits), conserves=not of_norm)
    return results


def last_vectors(view: ModelView, sample: Batch, byte_budget: int) -> Tensor:
    """The vectors [Tk, D] that sum to the last state where a sample on the CPU, without padding, is read."""
    length, width = sample.input_ids.shape[1], view.d_model
    hidden = LinearLayer(view.blocks[0].up, "linear", view.family.transposed).parameters()[0].shape[0]
    rows = max(1, _HIDDEN // (length * hidden))
    number = wide_dtype(view.dtype).itemsize
    of_head = 2 * length * length * view.head_dim  # values and their mixture
    least = (2 * length * length * width + max(of_head, 2 * length * hidden)) * number  # states before and after
    while rows > 1 and (2 * length * length * width + 2 * rows * length * hidden) * number > byte_budget:
        rows //= 2
    if least > byte_budget:
        raise UserError(
            f"DecompX needs {least} bytes for one sample of {length} tokens, and the budget is {byte_budget}: "
            "raise byte_budget or drop the longest samples"
        )
    decomposition = _Decomposition(view, int(sample.position), rows)
    with visiting(view, decomposition.visit):
        view.hidden(sample.to(view.device))
    assert decomposition.vectors is not None
    return decomposition.vectors[0]


@dataclass
class _Decomposition:
    """The states of one sample taken apart, layer by layer, while the model runs."""

    view: ModelView
    position: int
    rows: int  # destinations whose hidden layer is held
    vectors: Tensor | None = None  # [Ti, Tk, D]; behind the last block [1, Tk, D], where the sample is read

    def visit(self, layer: Layer) -> None:
        last = layer.index == self.view.n_layers - 1
        rows = slice(self.position, self.position + 1) if last else slice(0, layer.residual.shape[1])
        behind_attention, _ = layer.block.sum_norms
        vectors = _normed(self._attended(layer, rows), behind_attention)
        self.vectors = None  # of the block below
        for part in slices(0, len(vectors), self.rows):
            vectors[part] = self._behind_mlp(vectors[part], layer.block)
        self.vectors = vectors

    def _attended(self, layer: Layer, rows: slice) -> Tensor:
        """Residual and attention of the destinations `rows`, [Ti, Tk, D].

        What enters the first block is one vector a token: there the bias of the values goes with its token. Later it
        reaches a destination from all tokens together, whose weights sum to one, and is shared as the output's is.
        """
        weights, output = layer.weights()[0, :, :, rows].transpose(1, 2), output_weights(layer)  # [H, i, j], [H, K, D]
        bias = layer.block.output_weights()[1]
        bias = output.new_zeros(output.shape[-1]) if bias is None else bias.to(output)
        length = layer.residual.shape[1]
        destinations = torch.arange(length, device=output.device)[rows]
        if self.vectors is None:
            mixed = output.new_zeros(len(destinations), length, output.shape[-1])
            for of_head, values, out in zip(weights, layer.values()[0], output, strict=True):
                mixed.addcmul_(of_head[..., None], values @ out)
            at = torch.arange(len(destinations), device=output.device)
            mixed[at, destinations] += layer.residual[0, rows].to(mixed)
            return _shared(mixed, bias)
        value, value_bias = layer.block.value_weights()  # [G, K, D], [G, K]
        groups = len(output) // len(value)
        vectors = self.vectors.to(output.device)
        mixed = vectors[rows].clone()
        for h, (of_head, out) in enumerate(zip(weights, output, strict=True)):
            values = vectors @ value[h // groups].to(output).T  # [j, k, K]
            mixed.flatten(0, 1).addmm_((of_head @ values.flatten(1)).view(-1, len(out)), out)
            if value_bias is not None:
                bias = bias + value_bias[h // groups].to(output) @ out
        return _shared(mixed, bias)

    def _behind_mlp(self, vectors: Tensor, block: BlockView) -> Tensor:
        """[i, Tk, D] behind a block's MLP, its residual and its norm."""
        inside = _activated(self._dense(vectors, block.up), self.view.activation_name)
        return _normed(self._dense(inside, block.down).add_(vectors), block.mlp_norm)

    def _dense(self, vectors: Tensor, module: nn.Module) -> Tensor:
        return _linear(vectors, LinearLayer(module, "linear", self.view.family.transposed))


def _read(view: ModelView, vectors: Tensor, sample: Batch) -> Tensor:
    """The additions of vectors [Tk, D] to the logits of target and foil, [2, Tk] ([1, Tk] without foils)."""
    if view.head_layer is not None:
        vectors = _activated(_linear(vectors, view.head_layer), view.head_activation_name)
        vectors = vectors if view.head_norm is None else _normed(vectors, view.head_norm)
    rows, biases = view.unembedding_rows(to_device(sample.explained_ids[0], view.device))  # [2, D], [2]
    read = rows.to(vectors) @ vectors.T
    if biases is None:
        return read
    with weights_of(view.unembedding) as module:  # all labels, or tokens, have a say in how their biases are shared
        direction = module.bias.detach().to(vectors) @ module.weight.detach().to(vectors)
    return read + biases.to(vectors)[:, None] * _shares(vectors, direction)


def _linear(vectors: Tensor, layer: LinearLayer) -> Tensor:
    """[..., Tk, I] to [..., Tk, O]."""
    weight, bias = layer.parameters()
    through = vectors @ weight.to(vectors).T
    return through if bias is None else _shared(through, bias.to(vectors))


def _shared(vectors: Tensor, bias: Tensor) -> Tensor:
    """Vectors [..., Tk, D] with a bias [D] shared among them, in place."""
    return vectors.addcmul_(_shares(vectors, bias)[..., None], bias)


def _shares(vectors: Tensor, bias: Tensor) -> Tensor:
    """AbsDot: what each of the vectors [..., Tk, D] gets of a bias [D], [..., Tk]."""
    sizes = (vectors @ bias).abs()
    return sizes / (sizes.sum(-1, keepdim=True) + _TINY)


def _activated(vectors: Tensor, name: str) -> Tensor:
    """Vectors [..., Tk, D] times the factor by which the activation multiplies their sum, in place."""
    return vectors.mul_(activation(name).ratio(vectors.sum(-2, keepdim=True)))


def _normed(vectors: Tensor, norm: NormView) -> Tensor:
    """Vectors [..., Tk, D] through a LayerNorm with the deviation of their sum, in place."""
    weight, bias = norm.parameters()
    total = vectors.sum(-2, keepdim=True)
    deviation = (total.var(-1, unbiased=False, keepdim=True) + norm.eps).sqrt()
    vectors = vectors.sub_(vectors.mean(-1, keepdim=True)).mul_(weight.to(vectors) / deviation)
    return vectors if bias is None else _shared(vectors, bias.to(vectors))
