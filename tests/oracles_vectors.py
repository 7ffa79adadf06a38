"""GlobEnc by the letter, on BERT: one sample, every vector of every pair of tokens at once.

A sample is a view row. Weights are read from the stock model's modules, attention weights from its own output.
"""

import torch
from torch import Tensor, nn

from lrp_core import ModelView


def _attention(view: ModelView, row: dict) -> tuple[list[Tensor], list[Tensor]]:
    """Weights [H, T, T] of each layer, and hidden states [T, D] from the embeddings' output on."""
    before = view.config._attn_implementation
    view.model.set_attn_implementation("eager")
    ids = torch.tensor([row["input_ids"]])
    found = view.model(input_ids=ids, output_attentions=True, output_hidden_states=True)
    view.model.set_attn_implementation(before)
    return [one[0] for one in found.attentions], [one[0] for one in found.hidden_states]


def _moved(layer: nn.Module, weights: Tensor, values: Tensor) -> Tensor:
    """What each token's values [T, D] become at each destination, [Ti, Tk, D], without the output's bias."""
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


def globenc(view: ModelView, row: dict) -> list[Tensor]:
    """The map [T, T] of each layer: norms through both norms, the second with the deviation of its true input."""
    attention, states = _attention(view, row)
    maps = []
    for layer, weights, x in zip(view.model.bert.encoder.layer, attention, states, strict=False):
        vectors = _moved(layer, weights, layer.attention.self.value(x))
        first, second, inner = layer.attention.output.LayerNorm, layer.output.LayerNorm, layer.output.dense
        whole = first(vectors.sum(1) + layer.attention.output.dense.bias + x)  # [T, D]
        before_second = inner(layer.intermediate(whole)) + whole
        rows = torch.zeros(vectors.shape[:2], dtype=x.dtype)
        for i in range(len(x)):
            vectors[i, i] += x[i]
            behind = _linear_norm(vectors[i], vectors[i].sum(0), first)
            rows[i] = _linear_norm(behind, before_second[i], second).norm(dim=-1)
        maps.append(rows / rows.sum(-1, keepdim=True))
    return maps
