"""Products of factors that carry relevance: weights and values, queries and keys, the branches of gated layers.

The uniform rule gives each of k factors 1/k of its gradient (AttnLRP propositions 3.2 and 3.3). The signal-takes-all
rule holds the factor that came from an activation constant (Close Look C.1, C.4); where there is no such factor, or
several, it is the uniform rule. A factor that is constant under a composite does not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from closelook.lrp_core.operations import marks
from closelook.lrp_core.operations.elementwise import common_source, of_one_tensor
from closelook.lrp_core.operations.layers import Layer
from closelook.lrp_core.operations.linear import layer_of
from closelook.lrp_core.operations.marks import NONE, Mark, joined, mark_of, marked, replaced, tensors_in
from closelook.lrp_core.operations.nodes import holds_deviations, scaled, with_value
from closelook.lrp_core.operations.scope import Scope, name_of
from closelook.lrp_core.operations.table import rule, spellings
from closelook.lrp_core.rules.records import Composite


def holds(composite: Composite, mark: Mark) -> bool:
    """True if a composite holds a tensor with this mark constant."""
    if mark.weights is not None or mark.constant == marks.WEIGHTS:
        return not composite.bilinear.serves_gate
    if mark.constant == marks.DEVIATION:
        return composite.normalization.constant
    if mark.constant == marks.ROUTING:
        return composite.name != "plain"
    return mark.constant is not None and composite.activation.constant


def holds_weights(composite: Composite) -> bool:
    """True if a composite holds attention weights constant."""
    return not composite.bilinear.serves_gate or composite.softmax.name == "constant"


def shares(composite: Composite, *factors: Mark) -> list[float]:
    """The share of its gradient that each factor of a product gets under a composite."""
    rule = composite.bilinear
    counted = [mark.constant != marks.DEVIATION and not holds(composite, mark) for mark in factors]
    count = sum(counted)
    if rule.share == 1 and rule.serves_gate:
        count = 1
    if not rule.serves_gate and count > 1:
        gates = [mark.activation or mark.weights is not None for mark in factors]
        gates = [gate and one for gate, one in zip(gates, counted, strict=True)]
        if sum(gates) == 1:
            return [0 if gate else 1 / (count - 1) if one else 1 for gate, one in zip(gates, counted, strict=True)]
    return [1 / count if one else 1 for one in counted]


def _kind(mark: Mark) -> Mark:
    """The facts of a mark that shares depend on."""
    return Mark(mark.constant, mark.activation, None if mark.weights is None else True)


def product(mode: Scope, func: Any, args: Any, kwargs: Any, elementwise: bool = False) -> Tensor:
    """A product of all tensors of a call."""
    tensors = tensors_in((args, kwargs))
    factors = [tensor for tensor in tensors if tensor.requires_grad or mark_of(tensor).constant == marks.WEIGHTS]
    if any(tensor.requires_grad and not mark_of(tensor).constant for tensor in tensors):
        mode.refuse_constant(func, *(tensor for tensor in tensors if mark_of(tensor).constant == marks.DETACHED))
    of_factors = [mark_of(factor) for factor in factors]
    if len(factors) == 1 and not of_factors[0].constant:
        result = func(*args, **kwargs)
        return marked(result, of_factors[0].kept()) if elementwise and of_factors[0] is not NONE else result
    args, kwargs, common = _shared(mode, factors, of_factors, args, kwargs)
    result = scaled(func(*args, **kwargs), common, mode.plan)
    free = [mark for mark in of_factors if not mark.constant]
    if not free:
        return marked(result, joined(mark_of(tensor) for tensor in tensors))
    return marked(result, free[0].kept()) if elementwise and len(free) == 1 else result


def _shared(
    mode: Scope, factors: Sequence[Tensor], of_factors: Sequence[Mark], args: Any, kwargs: Any
) -> tuple[Any, Any, list[float]]:
    """Arguments of a product in which gradients of factors are scaled, and the rest of the scale, by composite."""
    by_composite = mode.plan.each(shares, *map(_kind, of_factors))
    common = [max(of_one, default=1) for of_one in by_composite]
    by = {}
    for number, factor in enumerate(factors):
        own = [of_one[number] / most if most else 1 for of_one, most in zip(by_composite, common, strict=True)]
        if factor.requires_grad:
            by[id(factor)] = scaled(factor, own, mode.plan)
    return replaced(args, by), replaced(kwargs, by), common


@rule("mul", "multiply", steps=True)
def mul(mode: Scope, func: Any, args: Any, kwargs: Any) -> Tensor:
    """An elementwise product: a power or function of one tensor, a multiple, or a product of factors."""
    args, kwargs = _by_position(args, kwargs)
    parts = common_source(args, kwargs)
    if parts:
        return of_one_tensor(mode, func, args, kwargs, parts, linear=len(parts) == 1 and args[0] is not args[1])
    a, b = args[:2]
    for one, other in ((a, b), (b, a)):
        if _carries(one) and _carries(other) and mark_of(other).offset:
            return _with_offset(mode, func, one, other)
    return product(mode, func, args, kwargs, elementwise=True)


def _by_position(args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments of a function of `input` and `other`, which a model may give by name."""
    if len(args) > 1:
        return args, kwargs
    kwargs = dict(kwargs)
    return (*(args or (kwargs.pop("input"),)), kwargs.pop("other")), kwargs


def _carries(value: Any) -> bool:
    """True for a tensor that carries relevance and is not held constant."""
    return isinstance(value, Tensor) and value.requires_grad and not mark_of(value).constant


def _with_offset(mode: Scope, func: Any, a: Tensor, b: Tensor) -> Tensor:
    """a b, where b is a tensor plus a number: the number's product with a is linear in a, and the rest a product."""
    mark, offset = mark_of(b), mark_of(b).offset
    rest = marked(b - offset, mark._replace(offset=0.0, elementwise=None))
    return with_value(product(mode, func, (a, rest), {}) + a * offset, func(a.detach(), b.detach()))


@rule("div", "divide", "true_divide", steps=True)
def div(mode: Scope, func: Any, args: Any, kwargs: Any) -> Tensor:
    """A quotient: a function of one tensor, or a product with the inverse of a deviation or a gate."""
    args, kwargs = _by_position(args, kwargs)
    a, b = args[:2]
    parts = common_source(args, kwargs)
    if func is Tensor.__rdiv__ or func is Tensor.__rtruediv__:
        a, b = b, a
    if parts:
        linear = len(parts) == 1 and not (isinstance(b, Tensor) and id(b) in parts)
        return of_one_tensor(mode, func, args, kwargs, parts, linear=linear)
    if isinstance(b, Tensor) and b.requires_grad and not mark_of(b).constant:
        factors = [0 if held else 1 for held in mode.plan.each(holds_deviations)]
        by = {id(b): marked(scaled(b.view_as(b), factors, mode.plan), Mark(constant=marks.DEVIATION))}
        args, kwargs = replaced(args, by), replaced(kwargs, by)
        if not (isinstance(a, Tensor) and a.requires_grad):
            return marked(func(*args, **kwargs), Mark(constant=marks.DEVIATION))
    constants = [mark_of(x).constant for x in (a, b) if isinstance(x, Tensor)]
    if constants == [marks.EXPONENTIAL, marks.SUM_OF_EXPONENTIALS]:
        raise mode.refused("no rule for a softmax that is written as exponentials over their sum: use torch.softmax")
    return product(mode, func, args, kwargs, elementwise=True)


@rule("matmul", "mm", "bmm", "einsum", "dot", "mv", "prod", "bilinear", "outer")
def contraction(mode: Scope, func: Any, args: Any, kwargs: Any) -> Tensor:
    """A matrix product or a sum of products."""
    constants = [tensor for tensor in tensors_in((args, kwargs)) if mark_of(tensor) is not NONE]
    carrying = [tensor for tensor in tensors_in((args, kwargs)) if tensor.requires_grad]
    if not carrying or all(mark_of(tensor).constant for tensor in carrying):
        others = [tensor for tensor in tensors_in((args, kwargs)) if mark_of(tensor) is NONE]
        if others:
            mode.refuse_constant(func, *constants)
    elif all(mark_of(tensor).constant or mark_of(tensor).weights is not None for tensor in carrying):
        mode.refuse_constant(func, *constants)  # attention weights are constant under some composites, too
    if mode.rules_layers and len(carrying) == 1:
        x, *others = tensors_in((args, kwargs))
        if func in _OF_MATRICES and x is carrying[0] and others[0].dim() == 2 and mark_of(others[0]) is NONE:
            weight = others[0].mT
            return layer_of(mode, x, Layer(mode.plan, weight, None), lambda: func(x, others[0]))
        _refuse_weights(mode, func, tensors_in((args, kwargs)))
    result = product(mode, func, args, kwargs)
    _enter_attention(mode, result, carrying)
    return result


_OF_MATRICES = frozenset({torch.matmul, torch.mm, Tensor.matmul, Tensor.mm, Tensor.__matmul__})


def _refuse_weights(mode: Scope, func: Any, tensors: Sequence[Tensor]) -> None:
    """Raise UnsupportedModel for a product with weights that rules of linear layers do not cover."""
    if any(not tensor.requires_grad and mark_of(tensor) is NONE for tensor in tensors):
        raise mode.refused(
            f"rules of linear layers do not cover {name_of(func)} with weights: leave them out of the composite"
        )


def _enter_attention(mode: Scope, result: Tensor, factors: Sequence[Tensor]) -> None:
    """Tell the groups of linear layers about attention, which a product of weights and values ends."""
    weights = [factor for factor in factors if mark_of(factor).weights is not None]
    if mode.rules_layers and (weights or len(factors) == 1):
        values = [factor.grad_fn for factor in factors if mark_of(factor).weights is None]
        scores = [mark_of(factor).weights for factor in weights]
        mode.layers.attend(result, *values, *scores)


@rule("baddbmm", "addmm", "addbmm", "addcmul", "addmv", "addr")
def sum_and_product(mode: Scope, func: Any, args: Any, kwargs: Any) -> Tensor:
    """A sum of a tensor and a product: the tensor gets its gradient, the factors their shares."""
    tensors = tensors_in((args, kwargs))
    first, *factors = tensors
    carrying = sum(tensor.requires_grad for tensor in tensors)
    if carrying == 1 and not mode.rules_layers and all(mark_of(tensor) is NONE for tensor in tensors):
        return func(*args, **kwargs)
    mode.refuse_constant(func, first)
    if mode.rules_layers and func in _LAYERS and not first.requires_grad and not factors[1].requires_grad:
        layer = Layer(mode.plan, factors[1].mT, first)
        return layer_of(mode, factors[0], layer, lambda: func(*args, **kwargs))
    if mode.rules_layers and func not in _ELEMENTWISE:
        _refuse_weights(mode, func, factors)
    factors = [factor for factor in factors if factor.requires_grad]
    args, kwargs, common = _shared(mode, factors, [mark_of(factor) for factor in factors], args, kwargs)
    by = {id(first): scaled(first, [1 / most for most in common], mode.plan)} if first.requires_grad else {}
    return scaled(func(*replaced(args, by), **replaced(kwargs, by)), common, mode.plan)


_LAYERS = frozenset(spellings("addmm"))  # of a bias, inputs and a weight
_ELEMENTWISE = frozenset(spellings("addcmul"))


@rule("linalg_solve_triangular", "solve_triangular")
def solve(mode: Scope, func: Any, args: Any, kwargs: Any) -> Tensor:
    """The solution of A X = B, which is linear in B; A is held constant (the keys' part of a gated delta rule)."""
    if all(composite.name != "plain" for composite in mode.plan.composites):
        args = (args[0].detach(), *args[1:])
    return func(*args, **kwargs)
