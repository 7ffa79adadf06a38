"""A model with other weights that compute the same function.

Relevance that explains the function stays the same; relevance that depends on how it is parametrised changes (arXiv
2510.18810).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from closelook.lrp_core.families.generic import GenericFamily
from closelook.lrp_core.interventions.in_place import check_weights, put_back, restored, tensors_of
from closelook.lrp_core.parts.block import BlockView
from closelook.lrp_core.parts.layers import NormView
from closelook.lrp_core.views.guard import undisturbed
from closelook.lrp_core.views.view import ModelView

HEADS = "heads permuted"
_SCALES = torch.tensor([0.25, 0.5, 2.0, 4.0])  # powers of two, so that scaling does not round


@dataclass(frozen=True)
class Linear:
    """The weight [out, in] and bias [out] of a linear layer, as views that write into the module."""

    weight: Tensor
    bias: Tensor | None

    @classmethod
    def of(cls, module: Any, transposed: bool) -> Linear:
        """The weight and bias of `module`; `transposed` says that it stores its weight as [in, out]."""
        weight, bias = module.weight.detach(), module.bias
        return cls(weight.T if transposed else weight, None if bias is None else bias.detach())

    def change(self, rows: Tensor | slice, new: Callable[[Tensor], Tensor]) -> None:
        """Replace the given `rows` (outputs) of weight and bias by `new(these rows)`."""
        for tensor in (self.weight, self.bias):
            if tensor is not None:
                tensor[rows] = new(tensor[rows])

    def change_inputs(self, new: Callable[[Tensor], Tensor]) -> None:
        """Replace the columns (inputs) of the weight: `new` maps the weight [in, out] to another."""
        self.weight.copy_(new(self.weight.T).T)


@contextmanager
def rewritten(view: ModelView, seed: int) -> Iterator[Iterator[tuple[str, ModelView]]]:
    """Inside, yields an iterator of (name, view of the rewritten model) for each of REWRITINGS that the model allows.

    A view is valid until the next one is taken. Permutations, scales and rotations are drawn from `seed`. No other
    thread can use the model meanwhile; afterwards it is restored bit by bit. A model that no family describes allows
    no rewriting. Raises UnsupportedModel for a model with offloaded weights or an adapter that is not merged.
    """
    check_weights(view)
    with undisturbed(view), torch.inference_mode(False), restored(view) as kept:
        yield _each(view, seed, kept)


def _each(view: ModelView, seed: int, kept: dict[int, Tensor]) -> Iterator[tuple[str, ModelView]]:
    """Yield (name, view) for each rewriting; afterwards the weights are those in `kept` (by id) again."""
    blocks = [] if isinstance(view.family, GenericFamily) else _distinct(view.blocks)
    for name, (allows, rewrite) in REWRITINGS.items():
        chosen = [block for block in blocks if allows(block)]
        if not chosen or (name == HEADS and any(map(_tells_heads_apart, blocks))):
            continue
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for block in chosen:
                rewrite(block, generator)
        yield name, replace(view)  # a new view: its cached properties may depend on weights
        put_back(tensors_of(view.model), kept)


def _distinct(blocks: Iterable[BlockView]) -> list[BlockView]:
    """The blocks, without later ones that share an earlier one's weights."""
    return list({id(block.output): block for block in blocks}.values())


def _tells_heads_apart(block: BlockView) -> bool:
    """True if attention has weights for each head besides its projections, such as position biases or sinks."""
    norms = [norm.module for norm in block.norms]
    known = {id(weight) for module in (*block.projections(), *norms) for weight in module.parameters()}
    return any(id(weight) not in known for weight in block.attention.parameters())


def _permute_heads(block: BlockView, generator: torch.Generator) -> None:
    """Permute key-value heads, and the query heads within the group of each."""
    size, shared = block.head_dim, block.n_heads // block.n_kv_heads
    groups = torch.randperm(block.n_kv_heads, generator=generator)
    members = torch.stack([torch.randperm(shared, generator=generator) for _ in groups])
    heads = (groups[:, None] * shared + members).flatten()
    of_heads, of_groups = (_with_width(order, size) for order in (heads, groups))
    orders = {"queries": of_heads, "keys": of_groups, "values": of_groups}
    for module, fields in block.projections().items():
        for name, (rows, _) in fields.items():
            if name in orders:
                _linear(block, module).change(rows, _ordered(orders[name]))
    _linear(block, block.output).change_inputs(_ordered(of_heads))
    for norm in block.head_norms:
        width = len(norm.parameters()[0])
        order = {len(of_heads): of_heads, len(of_groups): of_groups}.get(width)
        if order is not None and width != size:
            for weight in norm.module.parameters():
                weight.copy_(weight[order.to(weight.device)])


def _with_width(heads: Tensor, size: int) -> Tensor:
    """The columns of `heads` (numbers, in any order), each of `size` columns."""
    return (heads[:, None] * size + torch.arange(size)).flatten()


def _ordered(order: Tensor) -> Callable[[Tensor], Tensor]:
    """A function that permutes the first axis of a tensor by `order`."""
    return lambda tensor: tensor[order.to(tensor.device)]


def _scaled(by: Tensor) -> Callable[[Tensor], Tensor]:
    """A function that multiplies a tensor by the numbers `by` along its first axis."""
    return lambda tensor: tensor * by.to(tensor).reshape(-1, *[1] * (tensor.dim() - 1))


def _linear(block: BlockView, module: nn.Module) -> Linear:
    """The weight and bias of a linear layer of the block."""
    return Linear.of(module, block.family.transposed)


def _rotate_values(block: BlockView, generator: torch.Generator) -> None:
    """Rotate the values of each key-value head at random; the output projection rotates them back."""
    groups, size = block.n_kv_heads, block.head_dim
    normal = torch.randn(groups, size, size, generator=generator, dtype=torch.float64)
    rotations = torch.linalg.qr(normal).Q
    by_head = rotations.repeat_interleave(block.n_heads // groups, 0)

    def rotated(by: Tensor) -> Callable[[Tensor], Tensor]:
        def rotate(tensor: Tensor) -> Tensor:
            parts = tensor.double().reshape(len(by), size, -1)
            return (by.to(tensor.device) @ parts).reshape(tensor.shape).to(tensor.dtype)

        return rotate

    rows, _ = block.projections()[block.value]["values"]
    _linear(block, block.value).change(rows, rotated(rotations))
    _linear(block, block.output).change_inputs(rotated(by_head))


def _has_neurons(block: BlockView) -> bool:
    """True for a block without experts, which has an MLP."""
    return block.experts is None


def _inputs(block: BlockView) -> dict[str, tuple[Linear, slice]]:
    """The input projections of the MLP, `gate` and `up`, each with the rows that belong to it in the module."""
    size = block.n_neurons
    if block.gate is None:
        return {"up": (_linear(block, block.up), slice(0, size))}
    up = slice(size, 2 * size) if block.gate is block.up else slice(0, size)  # in one module the gate's rows come first
    return {"gate": (_linear(block, block.gate), slice(0, size)), "up": (_linear(block, block.up), up)}


def _permute_neurons(block: BlockView, generator: torch.Generator) -> None:
    """Permute the neurons of the MLP."""
    order = torch.randperm(block.n_neurons, generator=generator)
    for layer, rows in _inputs(block).values():
        layer.change(rows, _ordered(order))
    _linear(block, block.down).change_inputs(_ordered(order))


def _is_homogeneous(block: BlockView) -> bool:
    """True if scaling a neuron's row of `up` scales its activation: in gated MLPs, and in MLPs with ReLU."""
    return _has_neurons(block) and (block.gate is not None or isinstance(block.activation, nn.ReLU))


def _rescale_neurons(block: BlockView, generator: torch.Generator) -> None:
    """Scale the activations of neurons by random factors; the down projection divides by them."""
    scales = _SCALES[torch.randint(len(_SCALES), (block.n_neurons,), generator=generator)]
    layer, rows = _inputs(block)["up"]
    layer.change(rows, _scaled(scales))
    _linear(block, block.down).change_inputs(_scaled(1 / scales))


def _norms(block: BlockView) -> list[tuple[NormView, list[nn.Module]]]:
    """The norms of a pre-norm block whose outputs go to linear layers only, with these layers."""
    if block.family.norm_order != "pre" or not _has_neurons(block):
        return []
    readers: dict[nn.Module, tuple[NormView, list[nn.Module]]] = {}
    of_mlp = [block.up] if block.gate in (None, block.up) else [block.gate, block.up]
    for norm, layers in ((block.attention_norm, [block.query, block.key, block.value]), (block.mlp_norm, of_mlp)):
        if norm is not None:
            readers.setdefault(norm.module, (norm, []))[1].extend(dict.fromkeys(layers))
    return list(readers.values())


def _fold_norms(block: BlockView, generator: torch.Generator) -> None:
    """Multiply the weight of each norm into the layers that read it; the norm's bias is divided by the weight."""
    for norm, layers in _norms(block):
        weight, bias = norm.parameters()
        for module in layers:
            _linear(block, module).change_inputs(_scaled(weight))
        module_of_norm: Any = norm.module
        if bias is not None:
            module_of_norm.bias.copy_(bias / weight)
        module_of_norm.weight.fill_(1 - norm.offset)


_Rewriting = tuple[Callable[[BlockView], Any], Callable[[BlockView, torch.Generator], None]]
#: By name: a function that is true for the blocks that allow the rewriting, and the function that applies it.
REWRITINGS: dict[str, _Rewriting] = {
    HEADS: (lambda block: True, _permute_heads),
    "neurons permuted": (_has_neurons, _permute_neurons),
    "neurons rescaled": (_is_homogeneous, _rescale_neurons),
    "norms folded": (_norms, _fold_norms),
    "values rotated": (lambda block: True, _rotate_values),
}
