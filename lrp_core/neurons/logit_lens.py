"""The most relevant neurons, their logit lens (the words that they promote), and the tokens nearest to their keys.

The value vector of a neuron is its column of the down projection. Its key is its row of the input projection, in gated
layers of the gate (Geva et al. 2022; AttnLRP 4.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from closelook.lrp_core.device.precision import wide
from closelook.lrp_core.interventions.neurons import check_neuron
from closelook.lrp_core.neurons.near_ties import SPARE
from closelook.lrp_core.parts.layers import weights_of
from closelook.lrp_core.records.types import Relevance, UserError
from closelook.lrp_core.views.view import ModelView

Tokens = tuple[tuple[int, float], ...]  # (token id, its logit or cosine)

_AT_ONCE = 1 << 24  # logits that are computed at once


@dataclass(frozen=True)
class TopNeuron:
    """A neuron with its relevance in one sample."""

    layer: int
    neuron: int  # its number in the layer; `view.neuron_names` has its name
    relevance: float  # the sum over positions
    position: int  # where its absolute relevance is largest
    value: float  # its activation there


def top_neurons(relevance: Relevance, count: int, absolute: bool = False) -> list[list[TopNeuron]]:
    """The `count` most relevant neurons of each sample, by relevance or by its magnitude, in descending order.

    Neurons of equal relevance are ordered by layer, then by number. Neurons of experts that no token of the sample was
    sent to are left out, so a list may be shorter. Raises UserError for a result without relevance of neurons.
    """
    total, positions, values = relevance.neurons, relevance.neuron_positions, relevance.neuron_values
    if total is None or positions is None or values is None:
        raise UserError("the result has no relevance of neurons: call the method with neurons=True")
    width = total.shape[-1]
    chosen = []
    for of_sample, at, value in zip(total.flatten(1), positions.flatten(1), values.flatten(1), strict=True):
        ranked = of_sample.abs() if absolute else of_sample
        order = ranked.sort(descending=True, stable=True).indices
        order = order[at[order] >= 0][:count]  # -1: no token reached the expert, or the layer has no such neuron
        layers, numbers = (order // width).tolist(), (order % width).tolist()
        columns = layers, numbers, of_sample[order].tolist(), at[order].tolist(), value[order].tolist()
        chosen.append([TopNeuron(*neuron) for neuron in zip(*columns, strict=True)])
    return chosen


@dataclass(frozen=True)
class Writing:
    """The logit lens of a neuron: what one unit of its activation adds to the logits of the vocabulary."""

    promoted: Tokens  # the tokens with the largest logits, the largest first
    suppressed: Tokens  # the tokens with the smallest logits, the smallest first
    entropy: float  # of the softmax of these logits, in nats: low if few words stand out


def writing(view: ModelView, layer: int, neuron: int, count: int, normed: bool = False) -> Writing:
    """The logit lens of one neuron; see :func:`writings_of`."""
    return writings_of(view, layer, [neuron], count, normed)[0]


def writings_of(view: ModelView, layer: int, neurons: Sequence[int], count: int, normed: bool = False) -> list[Writing]:
    """The logit lens of neurons: their value vectors times the unembedding, without its bias (Geva et al. 2022).

    Each has the `count` largest and smallest logits. `normed` multiplies the vectors by the weight of the final norm
    first. For models that predict labels the token embeddings take the place of the unembedding. Raises UserError as
    `check_neuron`, for `normed` without a final norm, and if the unembedding has another width than the layers.
    """
    for neuron in neurons:
        check_neuron(view, layer, neuron)
    vectors = view.blocks[layer].neuron_vectors(neurons, written=True)  # [N, D]
    if normed:
        if view.final_norm is None:
            raise UserError(f"{view.family.title} have no final norm, which `normed` applies: leave out `normed`")
        vectors = vectors * view.final_norm.parameters()[0].to(vectors.device)
    vocabulary = _vocabulary(view, unembedding=True)
    writings: list[Writing] = []
    if vocabulary.shape[1] != vectors.shape[1]:
        raise UserError(
            f"{view.family.title} have no logit lens of neurons: their unembedding has another width than their layers"
        )
    for some in wide(vectors).cpu().split(max(1, _AT_ONCE // len(vocabulary))):
        logits = some @ vocabulary.T  # [n, V]
        share = logits.log_softmax(1)
        entropy = -(share.exp() * share).sum(1)
        promoted = _first(some, vocabulary, logits, count, largest=True)
        suppressed = _first(some, vocabulary, logits, count, largest=False)
        writings += map(Writing, promoted, suppressed, entropy.tolist())
    return writings


def nearest_tokens(view: ModelView, layer: int, neuron: int, count: int) -> Tokens:
    """The tokens nearest to the key of one neuron; see :func:`keys_of`.

    Raises UserError if token embeddings have another width than the layers.
    """
    (tokens,) = keys_of(view, layer, [neuron], count)
    if not tokens:
        raise UserError(
            f"{view.family.title} have no tokens near a key: token embeddings have another width than the layers"
        )
    return tokens


def keys_of(view: ModelView, layer: int, neurons: Sequence[int], count: int) -> list[Tokens]:
    """The `count` tokens whose embeddings are nearest to each neuron's key: (token, cosine), the largest first.

    The weight of the norm before the feed-forward layer, if there is one, is multiplied into the keys. The lists are
    empty if token embeddings have another width than the layers. Raises UserError as `check_neuron`.
    """
    for neuron in neurons:
        check_neuron(view, layer, neuron)
    block = view.blocks[layer]
    keys = block.neuron_vectors(neurons, written=False)  # [N, D]
    norm = {"pre": block.mlp_norm, "post": block.attention_norm}.get(view.family.norm_order)
    if norm is not None:
        keys = keys * norm.parameters()[0].to(keys.device)
    keys = wide(keys).cpu()
    tokens = _vocabulary(view, unembedding=False)
    if tokens.shape[1] != keys.shape[1]:
        return [()] * len(neurons)
    nearest = []
    for some in keys.split(max(1, _AT_ONCE // len(tokens))):
        of_keys, of_tokens = torch.nn.functional.normalize(some, dim=1), torch.nn.functional.normalize(tokens, dim=1)
        nearest += _first(of_keys, of_tokens, of_keys @ of_tokens.T, count, largest=True)
    return nearest


def _first(vectors: Tensor, words: Tensor, values: Tensor, count: int, *, largest: bool) -> list[Tokens]:
    """The `count` largest (or smallest) (token, value) of each row of `values` [N, V]; of equal ones the first (last).

    `values` are the products of `vectors` [N, D] and `words` [V, D]. The best SPARE + `count` are computed again in
    float64, one vector at a time, so that the order does not depend on which other vectors are asked for.
    """
    finalists = values.sort(dim=1, descending=largest, stable=True).indices[:, : count + SPARE]
    rows = []
    for ids, vector in zip(finalists.sort(dim=1, descending=not largest).values, vectors.double(), strict=True):
        order = (words[ids].double() @ vector).sort(descending=largest, stable=True)
        tokens, numbers = ids[order.indices][:count].tolist(), order.values[:count].tolist()
        rows.append(tuple(zip(tokens, numbers, strict=True)))
    return rows


def _vocabulary(view: ModelView, unembedding: bool) -> Tensor:
    """Rows [V, D] of the unembedding, or of the token embedding, on the CPU, in float32 at least."""
    module = view.unembedding if unembedding and not view.kind.labels else view.token_embedding
    with weights_of(module) as weights:
        return wide(weights.weight.detach()).cpu()
