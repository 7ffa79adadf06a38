"""A model whose weights are written in another way, so that it computes the same function.

An explanation of the function stays as it is; one of the way it is written moves (arXiv 2510.18810).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from lrp_core.families.generic import GenericFamily
from lrp_core.interventions.in_place import check_weights, put_back, restored, tensors_of
from lrp_core.parts.block import BlockView
from lrp_core.parts.norms import NormView
from lrp_core.views.guard import undisturbed
from lrp_core.views.view import ModelView

_SCALES = torch.tensor([0.25, 0.5, 2.0, 4.0])  # powers of two: nothing is rounded


@dataclass(frozen=True)
class Linear:
    """Rows of a linear layer, which are outputs, or its columns: views of the weight [out, in] and bias [out]."""

    weight: Tensor
    bias: Tensor | None

    @classmethod
    def of(cls, module: Any, transposed: bool) -> Linear:
        """A whole layer, to be written in place."""
        weight, bias = module.weight.detach(), module.bias
        return cls(weight.T if transposed else weight, None if bias is None else bias.detach())

    def change(self, rows: Tensor | slice, new: Callable[[Tensor], Tensor]) -> None:
        """Outputs [rows, ...] of weight and bias become `new` of them."""
        for tensor in (self.weight, self.bias):
            if tensor is not None:
                tensor[rows] = new(tensor[rows])

    def change_inputs(self, new: Callable[[Tensor], Tensor]) -> None:
        """Columns become `new` of them; `new` sees the weight as [in, out]."""
        self.weight.copy_(new(self.weight.T).T)


@contextmanager
def rewritten(view: ModelView, seed: int) -> Iterator[Iterator[tuple[str, ModelView]]]:
    """Inside, (name of a rewriting, the model so written), for each of REWRITINGS that the model allows.

    A view is valid until the next one is asked for. Permutations, scales and rotations are drawn from `seed`.
    Afterwards the model is bit-equal to what it was, and no other thread can use it before. A model that no family
    describes allows none.

    Raises UnsupportedModel for a model with offloaded weights or an adapter beside them.
    """
    check_weights(view)
    with undisturbed(view), torch.inference_mode(False), restored(view) as kept:
        yield _each(view, seed, kept)


def _each(view: ModelView, seed: int, kept: dict[int, Tensor]) -> Iterator[tuple[str, ModelView]]:
    blocks = [] if isinstance(view.family, GenericFamily) else _distinct(view.blocks)
    for name, (allows, rewrite) in REWRITINGS.items():
        chosen = [block for block in blocks if allows(block)]
        if not chosen or (name == HEADS and any(map(_tells_heads_apart, blocks))):
            continue
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for block in chosen:
                rewrite(block, generator)
        yield name, replace(view)
        put_back(tensors_of(view.model), kept)


def _distinct(blocks: Iterable[BlockView]) -> list[BlockView]:
    """Blocks without those whose weights are another's."""
    return list({id(block.output): block for block in blocks}.values())


def _tells_heads_apart(block: BlockView) -> bool:
    """True where attention has weights by head beside its projections, such as biases of positions or sinks."""
    known = {id(weight) for module in (*block.projections(), *_modules(block.norms)) for weight in module.parameters()}
    return any(id(weight) not in known for weight in block.attention.parameters())


def _modules(norms: Iterable[NormView]) -> list[nn.Module]:
    return [norm.module for norm in norms]


def _permute_heads(block: BlockView, generator: torch.Generator) -> None:
    """Key-value heads change places, and query heads within each."""
    size, shared = block.head_dim, block.n_heads // block.n_kv_heads
    groups = torch.randperm(block.n_kv_heads, generator=generator)
    members = torch.stack([torch.randperm(shared, generator=generator) for _ in groups])
    heads = (groups[:, None] * shared + members).flatten()
    of_heads, of_groups = (_with_width(order, size) for order in (heads, groups))
    orders = {"queries": of_heads, "keys": of_groups, "values": of_groups}
    for module, (name, (rows, _)) in _outputs(block):
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
    """The columns of heads of this size, in their order."""
    return (heads[:, None] * size + torch.arange(size)).flatten()


def _ordered(order: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda tensor: tensor[order.to(tensor.device)]


def _scaled(by: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda tensor: tensor * by.to(tensor).reshape(-1, *[1] * (tensor.dim() - 1))


def _outputs(block: BlockView) -> Iterator[tuple[nn.Module, tuple[str, tuple[Tensor | slice, tuple[int, ...]]]]]:
    for module, parts in block.projections().items():
        yield from product([module], parts.items())


def _linear(block: BlockView, module: nn.Module) -> Linear:
    return Linear.of(module, block.family.transposed)


def _rotate_values(block: BlockView, generator: torch.Generator) -> None:
    """Values of a key-value head are rotated, and the output projection turns them back."""
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
    return block.down is not None and block.experts is None


def _inputs(block: BlockView) -> dict[str, tuple[Linear, slice]]:
    """The layers that neurons read, `gate` and `up`, each with its outputs."""
    size = block.n_neurons
    if block.gate is None:
        return {"up": (_linear(block, block.up), slice(0, size))}
    up = slice(size, 2 * size) if block.gate is block.up else slice(0, size)  # the gate's come first
    return {"gate": (_linear(block, block.gate), slice(0, size)), "up": (_linear(block, block.up), up)}


def _permute_neurons(block: BlockView, generator: torch.Generator) -> None:
    order = torch.randperm(block.n_neurons, generator=generator)
    for layer, rows in _inputs(block).values():
        layer.change(rows, _ordered(order))
    _linear(block, block.down).change_inputs(_ordered(order))


def _is_homogeneous(block: BlockView) -> bool:
    """True if scaling a neuron's input weights scales its activation: gated neurons (by the factor of the gate) and
    ReLU.
    """
    return _has_neurons(block) and (block.gate is not None or isinstance(block.activation, nn.ReLU))


def _rescale_neurons(block: BlockView, generator: torch.Generator) -> None:
    """Neurons become larger or smaller, and the down projection makes up for it."""
    scales = _SCALES[torch.randint(len(_SCALES), (block.n_neurons,), generator=generator)]
    layer, rows = _inputs(block)["up"]
    layer.change(rows, _scaled(scales))
    _linear(block, block.down).change_inputs(_scaled(1 / scales))


def _norms(block: BlockView) -> list[tuple[NormView, list[nn.Module]]]:
    """The norms that linear layers alone read, with those layers."""
    if block.family.norm_order != "pre" or not _has_neurons(block):
        return []
    readers: dict[nn.Module, tuple[NormView, list[nn.Module]]] = {}
    of_mlp = [block.up] if block.gate in (None, block.up) else [block.gate, block.up]
    for norm, layers in ((block.attention_norm, [block.query, block.key, block.value]), (block.mlp_norm, of_mlp)):
        if norm is not None:
            readers.setdefault(norm.module, (norm, []))[1].extend(dict.fromkeys(layers))
    return list(readers.values())


def _fold_norms(block: BlockView, generator: torch.Generator) -> None:
    """The weight of a norm becomes that of the layers behind it, and its bias is divided by it."""
    for norm, layers in _norms(block):
        weight, bias = norm.parameters()
        for module in layers:
            _linear(block, module).change_inputs(_scaled(weight))
        module_of_norm: Any = norm.module
        if bias is not None:
            module_of_norm.bias.copy_(bias / weight)
        module_of_norm.weight.fill_(1 - norm.offset)


HEADS = "heads permuted"
_Rewriting = tuple[Callable[[BlockView], Any], Callable[[BlockView, torch.Generator], None]]
#: By name: the blocks that allow it, and what is done to them.
REWRITINGS: dict[str, _Rewriting] = {
    HEADS: (lambda block: True, _permute_heads),
    "neurons permuted": (_has_neurons, _permute_neurons),
    "neurons rescaled": (_is_homogeneous, _rescale_neurons),
    "norms folded": (_norms, _fold_norms),
    "values rotated": (lambda block: True, _rotate_values),
}
