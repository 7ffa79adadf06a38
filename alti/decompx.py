"""DecompX (Modarressi et al. 2023): every hidden state as a sum of vectors, one for each input token, up to the logits.

Vectors pass attention with the model's weights, norms with the standard deviation of their sum, and activations with
the factor g(z)/z of their sum. A bias is shared among the vectors in proportion to the absolute inner products with it
(AbsDot). So vectors always sum to the model's own state, and in the end to the logit. Shapes: Ti destinations, Tk input
tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from closelook.alti.layers import Layer, visiting
from closelook.alti.maps import output_weights
from closelook.alti.planner import free_bytes
from closelook.alti.transformed import slices
from closelook.lrp_core.device.precision import wide_dtype
from closelook.lrp_core.device.transfer import to_device
from closelook.lrp_core.parts.block import BlockView
from closelook.lrp_core.parts.layers import LinearLayer, NormView, weights_of
from closelook.lrp_core.records.explained import explained_by, relevance_of
from closelook.lrp_core.records.types import Batch, Requests, Results, UnsupportedMethod, UserError
from closelook.lrp_core.records.variants import unpadded
from closelook.lrp_core.views.view import ModelView

_HIDDEN = 2**24  # numbers of decomposed MLP activations that are held at a time
_TINY = 1e-12  # keeps shares of a bias finite if all its inner products are 0, as published; stands for a sum of 0


@torch.no_grad()
def explain_many(
    view: ModelView,
    batch: Batch,
    requests: Requests,
    *,
    score: str,
    byte_budget: int | None = None,
) -> Results:
    """DecompX: relevance of a token is what its vector adds to the explained number.

    For a regressor with `score` "norm" it is the norm of the token's last vector. Samples run one by one, without
    padding. Raises UserError for a contrastive request without foils, and if `byte_budget`, the bytes besides the
    weights, does not hold the vectors of one sample.
    """
    on_host, batch = batch.to("cpu"), batch.to(view.device)
    logits = view.logits(batch)
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
    """The vectors [Tk, D] that sum to the last hidden state at the readout position of a sample.

    The sample is a batch of one on the CPU, without padding. Raises UserError if the budget is too small for it.
    """
    length, width = sample.input_ids.shape[1], view.d_model
    hidden = view.n_neurons
    rows = max(1, _HIDDEN // (length * hidden))
    number = wide_dtype(view.dtype).itemsize
    of_head = 2 * length * length * view.head_dim  # numbers of a head's values and of their mixture
    # the vectors before and after a block, and the larger of what attention and the MLP hold
    least = (2 * length * length * width + max(of_head, 2 * length * hidden)) * number
    while rows > 1 and (2 * length * length * width + 2 * rows * length * hidden) * number > byte_budget:
        rows //= 2
    if least > byte_budget:
        raise UserError(
            f"DecompX needs {least} bytes for one sample of {length} tokens, and the budget is {byte_budget}: "
            "raise byte_budget or drop the longest samples"
        )
    decomposition = _Decomposition(view, int(sample.position), rows)
    with visiting(view, decomposition.visit):
        view.logits(sample)
    assert decomposition.vectors is not None
    return decomposition.vectors[0]


@dataclass
class _Decomposition:
    """Decomposes the hidden states of one sample into vectors, block by block, while the model runs."""

    view: ModelView
    position: int  # the readout position
    rows: int  # destinations whose MLP activations are held at a time
    vectors: Tensor | None = None  # [Ti, Tk, D]; after the last block [1, Tk, D], at the readout position only

    def visit(self, layer: Layer) -> None:
        """Replace the vectors before a block by those after it."""
        last = layer.index == self.view.n_layers - 1
        rows = slice(self.position, self.position + 1) if last else slice(0, layer.residual.shape[1])
        behind_attention, _ = layer.block.sum_norms
        vectors = _normed(self._attended(layer, rows), behind_attention)
        self.vectors = None  # of the block below
        for part in slices(len(vectors), self.rows):
            vectors[part] = self._behind_mlp(vectors[part], layer.block)
        self.vectors = vectors

    def _attended(self, layer: Layer, rows: slice) -> Tensor:
        """Vectors [Ti, Tk, D] of the sum of residual and attention, for the destinations `rows`.

        Before the first block a state is a single vector, that of its token, and the bias of its values goes with it.
        In later blocks the bias of values reaches a destination once in all, since attention weights sum to 1, and is
        shared among the vectors as the bias of the output projection is.
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
        """Vectors [Ti, Tk, D] after a block's MLP, residual sum and norm."""
        inside = _activated(self._dense(vectors, block.up), self.view.activation_name)
        return _normed(self._dense(inside, block.down).add_(vectors), block.mlp_norm)

    def _dense(self, vectors: Tensor, module: nn.Module) -> Tensor:
        """Vectors [..., Tk, I] through a linear layer of the MLP, [..., Tk, O]."""
        return _linear(vectors, LinearLayer(module, "linear", self.view.family.transposed))


def _read(view: ModelView, vectors: Tensor, sample: Batch) -> Tensor:
    """The contributions of vectors [Tk, D] to the logits of target and foil, [2, Tk] ([1, Tk] without foils)."""
    if view.head_layer is not None:
        vectors = _activated(_linear(vectors, view.head_layer), view.head_activation_name)
        vectors = vectors if view.head_norm is None else _normed(vectors, view.head_norm)
    rows, biases = view.unembedding_rows(to_device(sample.explained_ids[0], view.device))  # [2, D], [2]
    read = rows.to(vectors) @ vectors.T
    if biases is None:
        return read
    with weights_of(view.unembedding) as module:  # AbsDot with the whole bias vector, over all labels or tokens
        direction = module.bias.detach().to(vectors) @ module.weight.detach().to(vectors)
    return read + biases.to(vectors)[:, None] * _shares(vectors, direction)


def _linear(vectors: Tensor, layer: LinearLayer) -> Tensor:
    """Vectors [..., Tk, I] through a linear layer, [..., Tk, O]; its bias is shared among them."""
    weight, bias = layer.parameters()
    through = vectors @ weight.to(vectors).T
    return through if bias is None else _shared(through, bias.to(vectors))


def _shared(vectors: Tensor, bias: Tensor) -> Tensor:
    """Vectors [..., Tk, D] after their shares of a bias [D] were added, in place."""
    return vectors.addcmul_(_shares(vectors, bias)[..., None], bias)


def _shares(vectors: Tensor, bias: Tensor) -> Tensor:
    """The share of a bias [D] that each of the vectors [..., Tk, D] gets by AbsDot, [..., Tk]."""
    sizes = (vectors @ bias).abs()
    return sizes / (sizes.sum(-1, keepdim=True) + _TINY)


def _activated(vectors: Tensor, name: str) -> Tensor:
    """Vectors [..., Tk, D] times g(z)/z of their sum z, in place; g is the activation of that name, with g(0) = 0.

    Raises UnsupportedMethod for another activation.
    """
    activation = ACT2FN[name]
    if activation(torch.zeros(1)) != 0:
        raise UnsupportedMethod(f"DecompX divides the activation {name} by its argument, but it is not 0 at 0")
    total = vectors.sum(-2, keepdim=True)
    total = total.where(total != 0, -_TINY)  # below 0, where ReLU is 0
    return vectors.mul_(activation(total) / total)


def _normed(vectors: Tensor, norm: NormView) -> Tensor:
    """Vectors [..., Tk, D] through a LayerNorm with the standard deviation of their sum, in place."""
    weight, bias = norm.parameters()
    total = vectors.sum(-2, keepdim=True)
    deviation = (total.var(-1, unbiased=False, keepdim=True) + norm.eps).sqrt()
    vectors = vectors.sub_(vectors.mean(-1, keepdim=True)).mul_(weight.to(vectors) / deviation)
    return vectors if bias is None else _shared(vectors, bias.to(vectors))
