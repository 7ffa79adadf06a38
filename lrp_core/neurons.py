"""What neurons of feed-forward layers are: the most relevant ones, what they write and what they answer to.

A neuron's value vector is its column of the down projection, its key its row of the input matrix, the gate's in gated
layers (Geva et al. 2022; AttnLRP 4.3).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lrp_core.interventions.neurons import check_neuron
from lrp_core.parts import weights_of
from lrp_core.types import Relevance, UserError
from lrp_core.view import ModelView


@dataclass(frozen=True)
class TopNeuron:
    """A neuron that matters in one sample."""

    layer: int
    neuron: int
    relevance: float  # the sum over positions
    position: int  # where its absolute relevance is largest
    value: float  # its activation there

    def __str__(self) -> str:
        return f"{self.layer}.{self.neuron}"


def top_neurons(relevance: Relevance, count: int, absolute: bool = False) -> list[list[TopNeuron]]:
    """The `count` most relevant neurons of each sample, in descending order, signed or by magnitude.

    Of equal relevance the lower layer, then the lower number comes first. Raises UserError for relevance that was not
    asked for with `neurons=True`.
    """
    total, positions, values = relevance.neurons, relevance.neuron_positions, relevance.neuron_values
    if total is None or positions is None or values is None:
        raise UserError("relevance of neurons was not asked for: give neurons=True")
    width = total.shape[-1]
    found = []
    for one, at, value in zip(total.flatten(1), positions.flatten(1), values.flatten(1), strict=True):
        order = (one.abs() if absolute else one).sort(descending=True, stable=True).indices[:count].tolist()
        found.append([TopNeuron(i // width, i % width, float(one[i]), int(at[i]), float(value[i])) for i in order])
    return found


@dataclass(frozen=True)
class Writing:
    """What a neuron adds to the logits of the vocabulary for each unit of activation."""

    promoted: tuple[tuple[int, float], ...]  # (token, logit), the largest first
    suppressed: tuple[tuple[int, float], ...]  # the smallest first
    entropy: float  # of the softmax over the vocabulary, in nats: low where few words stand out


def writing(view: ModelView, layer: int, neuron: int, count: int, normed: bool = False) -> Writing:
    """The neuron's value vector times the unembedding (Geva et al. 2022), biases left out.

    `normed` multiplies it by the weight of the final norm first. Models that predict labels are read through their
    token embeddings. Raises UserError as `check_neuron`, and for `normed` without a final norm.
    """
    check_neuron(view, layer, neuron)
    with weights_of(view.blocks[layer].down) as module:
        weight = module.weight.detach()
        vector = weight[neuron] if view.family.transposed else weight[:, neuron]  # [D]
    if normed:
        if view.final_norm is None:
            raise UserError(f"{view.family.title} have no final norm whose weight could be folded in")
        vector = vector * view.final_norm.parameters()[0].to(vector.device)
    logits = _vocabulary(view, unembedding=True) @ _wide(vector).cpu()  # [V]
    order = logits.sort(descending=True, stable=True)
    listed = list(zip(order.indices.tolist(), order.values.tolist(), strict=True))
    share = logits.log_softmax(0)
    return Writing(tuple(listed[:count]), tuple(listed[::-1][:count]), float(-(share.exp() * share).sum()))


def nearest_tokens(view: ModelView, layer: int, neuron: int, count: int) -> tuple[tuple[int, float], ...]:
    """The tokens whose embeddings are nearest to the neuron's key, by cosine: (token, cosine), the largest first.

    The weight of the norm before the feed-forward layer, if there is one, is folded into the key.
    """
    check_neuron(view, layer, neuron)
    block = view.blocks[layer]
    with weights_of(block.up if block.gate is None else block.gate) as module:
        weight = module.weight.detach()
        key = weight[:, neuron] if view.family.transposed else weight[neuron]  # [D]
    norm = {"pre": block.mlp_norm, "post": block.attention_norm}.get(view.family.norm_order)
    key = _wide(key if norm is None else key * norm.parameters()[0].to(key.device)).cpu()
    tokens = _vocabulary(view, unembedding=False)
    if tokens.shape[1] != len(key):
        raise UserError(f"{view.family.title} embed tokens in another width than that of their layers")
    cosines = torch.nn.functional.cosine_similarity(tokens, key[None], dim=-1)
    order = cosines.sort(descending=True, stable=True)
    return tuple(zip(order.indices[:count].tolist(), order.values[:count].tolist(), strict=True))


def _vocabulary(view: ModelView, unembedding: bool) -> Tensor:
    """Rows [V, D] of the unembedding, or of the token embedding, on the CPU, in float32 at least."""
    module = view.unembedding if unembedding and not view.kind.labels else view.token_embedding
    with weights_of(module) as weights:
        return _wide(weights.weight.detach()).cpu()


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
