"""GlobEnc and DecompX by the letter, on BERT: one sample, every vector of every pair of tokens at once.

A sample is a view row. Weights are read from the stock model's modules, attention weights from its own output.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from closelook.lrp_core import ModelView
from tests.oracles.methods import stock


def _attention(view: ModelView, row: dict) -> tuple[list[Tensor], list[Tensor]]:
    """Weights [H, T, T] of each layer, and hidden states [T, D] from the embeddings' output on."""
    before = view.config._attn_implementation
    view.model.set_attn_implementation("eager")
    ids = torch.tensor([row["input_ids"]])
    outputs = stock(view, input_ids=ids, output_attentions=True, output_hidden_states=True)
    view.model.set_attn_implementation(before)
    return [layer[0] for layer in outputs.attentions], [layer[0] for layer in outputs.hidden_states]


def _moved(layer: nn.Module, weights: Tensor, values: Tensor) -> Tensor:
    """The contribution [Ti, Tk, D] of each token's values [T, D] to each destination, without the output's bias."""
    heads, width = len(weights), values.shape[-1] // len(weights)
    moved = torch.zeros(*weights.shape[1:], values.shape[-1], dtype=values.dtype)
    for h in range(heads):
        of_head = slice(h * width, (h + 1) * width)
        written = values[:, of_head] @ layer.attention.output.dense.weight[:, of_head].T  # [T, D]
        for i in range(moved.shape[0]):
            for k in range(moved.shape[1]):
                moved[i, k] += weights[h, i, k] * written[k]
    return moved


def _linear_norm(vectors: Tensor, state: Tensor, norm: nn.LayerNorm) -> Tensor:
    """Vectors [..., D] through a norm with the deviation of `state` [D], without its bias."""
    deviation = (state.var(unbiased=False) + norm.eps).sqrt()
    return (vectors - vectors.mean(-1, keepdim=True)) / deviation * norm.weight


def globenc(view: ModelView, row: dict, normalise: bool = True) -> list[Tensor]:
    """The map [T, T] of each layer: norms through both norms, each with the deviation of its true input."""
    attention, states = _attention(view, row)
    maps = []
    for layer, weights, x in zip(view.model.bert.encoder.layer, attention, states, strict=False):
        vectors = _moved(layer, weights, layer.attention.self.value(x))
        first, second, inner = layer.attention.output.LayerNorm, layer.output.LayerNorm, layer.output.dense
        before_first = vectors.sum(1) + layer.attention.output.dense.bias + x  # [T, D]
        whole = first(before_first)
        before_second = inner(layer.intermediate(whole)) + whole
        rows = torch.zeros(vectors.shape[:2], dtype=x.dtype)
        for i in range(len(x)):
            vectors[i, i] += x[i]
            behind = _linear_norm(vectors[i], before_first[i], first)
            rows[i] = _linear_norm(behind, before_second[i], second).norm(dim=-1)
        maps.append(rows / rows.sum(-1, keepdim=True) if normalise else rows)
    return maps


def _with_bias(vectors: Tensor, bias: Tensor) -> Tensor:
    """AbsDot: vectors [K, D] share a bias [D] by the sizes of their inner products with it."""
    shares = (vectors @ bias).abs()
    return vectors + torch.outer(shares / (shares.sum() + 1e-12), bias)


def _dense(vectors: Tensor, linear: nn.Linear) -> Tensor:
    return _with_bias(vectors @ linear.weight.T, linear.bias)


def _activated(vectors: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Every vector is multiplied by what the function multiplies their sum by."""
    whole = vectors.sum(0)
    return vectors * (function(whole) / (whole + 1e-12))


def _normed(vectors: Tensor, norm: nn.LayerNorm) -> Tensor:
    return _with_bias(_linear_norm(vectors, vectors.sum(0), norm), norm.bias)


def decompx_vectors(view: ModelView, row: dict) -> Tensor:
    """Modarressi et al. 2023: the last state of each token as a sum over input tokens, [Ti, Tk, D]."""
    attention, states = _attention(view, row)
    length, vectors = len(row["input_ids"]), None
    for layer, weights in zip(view.model.bert.encoder.layer, attention, strict=True):
        value, output = layer.attention.self.value, layer.attention.output
        if vectors is None:
            x = torch.zeros(length, length, states[0].shape[-1], dtype=states[0].dtype)
            for k in range(length):
                x[k, k] = states[0][k]
            mixed, bias = _moved(layer, weights, value(states[0])), output.dense.bias
        else:
            x, mixed = vectors, torch.zeros_like(vectors)
            for k in range(length):
                mixed[:, k] = _moved(layer, weights, x[:, k] @ value.weight.T).sum(1)
            bias = output.dense.weight @ value.bias + output.dense.bias
        after = []
        for i in range(length):
            z = _normed(_with_bias(mixed[i] + x[i], bias), output.LayerNorm)
            inside = _activated(_dense(z, layer.intermediate.dense), layer.intermediate.intermediate_act_fn)
            after.append(_normed(_dense(inside, layer.output.dense) + z, layer.output.LayerNorm))
        vectors = torch.stack(after)
    return vectors


def decompx(view: ModelView, row: dict) -> Tensor:
    """The contribution [Tk, V] of each token to the logits of all tokens or labels at the predicted position."""
    vectors, model = decompx_vectors(view, row)[row["position"]], view.model
    if view.kind.labels:
        return _dense(_activated(_dense(vectors, model.bert.pooler.dense), torch.tanh), model.classifier)
    head = model.cls.predictions
    inside = _activated(_dense(vectors, head.transform.dense), head.transform.transform_act_fn)
    return _dense(_normed(inside, head.transform.LayerNorm), head.decoder)
