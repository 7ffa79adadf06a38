"""Elementwise functions f of one tensor z: activations, gates, and what models write as several such operations.

With f(0) = 0 it is an activation: relevance passes unchanged (identity rule; Close Look C.3, AttnLRP equation 9). As a
gradient: dz = f(z)/z * dy. Otherwise (sigmoid, softplus, exp) it is a gate: a constant, which may multiply or divide
relevance and do nothing else. Operations on functions of the same z, as in z * sigmoid(z), are a function of z again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from closelook.lrp_core.device.precision import wide
from closelook.lrp_core.operations.marks import (
    DETACHED,
    EXPONENTIAL,
    GATE,
    NONE,
    POINTS,
    Elementwise,
    Mark,
    Points,
    mark_of,
    marked,
    replaced,
    tensors_in,
)
from closelook.lrp_core.operations.nodes import Plan, holds_activations, ruled, scaled
from closelook.lrp_core.operations.norms import deviation
from closelook.lrp_core.operations.scope import Scope, name_of
from closelook.lrp_core.operations.table import rule, spellings
from closelook.lrp_core.rules.records import Composite

_ZERO = 1e-5  # a function with a value below this at 0 is an activation: that of Apertus has 8e-7

# closed forms of f(z)/z


def _normal_cdf(z: Tensor) -> Tensor:
    """The ratio of GELU, z Phi(z): the normal distribution function Phi(z)."""
    return (z * 0.5**0.5).erf_().add_(1).mul_(0.5)


def _tanh_cdf(z: Tensor) -> Tensor:
    """The ratio of GELU's tanh form: (1 + tanh(u)) / 2 = sigmoid(2u) with u = sqrt(2/pi) (z + 0.044715 z^3)."""
    return (z * z).mul_(0.044715).add_(1).mul_(z).mul_((8 / torch.pi) ** 0.5).sigmoid_()


def _gelu(z: Tensor, approximate: str = "none") -> Tensor:
    """The ratio of GELU in either form."""
    return _tanh_cdf(z) if approximate == "tanh" else _normal_cdf(z)


def _is_positive(z: Tensor, *_: Any, **__: Any) -> Tensor:
    """The ratio of ReLU: 1 for positive z, else 0."""
    return (z > 0).to(z.dtype)


#: The ratio f(z)/z by function, called with the function's own arguments.
RATIOS: dict[Any, Callable[..., Tensor]] = {}
RATIOS |= dict.fromkeys(spellings("gelu"), _gelu)
RATIOS |= dict.fromkeys(spellings("silu"), lambda z, *_, **__: torch.sigmoid(z))
RATIOS |= dict.fromkeys(spellings("relu"), _is_positive)


# sources


def itself(tensor: Tensor) -> Elementwise:
    """A tensor as a function of itself."""
    return Elementwise(tensor, POINTS, linear=True, version=tensor._version)


def common_source(args: Any, kwargs: Any) -> dict[int, Elementwise] | None:
    """The tensors of a call as functions of one tensor, by their id; None if they are not, up to single numbers."""
    parts: dict[int, Elementwise] = {}
    source = None
    for tensor in tensors_in((args, kwargs) if kwargs else args):
        mark = mark_of(tensor)
        if mark is NONE and not tensor.requires_grad:
            if tensor.numel() != 1:
                return None
            continue
        part = mark.elementwise
        if part is None or part.version != part.source._version:
            if mark.pending:
                return None
            part = itself(tensor)
        if source is not None and part.source is not source:
            return None
        source = part.source
        parts[id(tensor)] = part
    return parts


def at_points(func: Any, args: Any, kwargs: Any, parts: dict[int, Elementwise]) -> Points:
    """The call's result at the points, from those of its parts."""
    if kwargs:
        kwargs = {name: value for name, value in kwargs.items() if name not in ("inplace", "out", "dtype")}
    written = {key: part.at for key, part in parts.items()}
    truths = tuple(isinstance(part.at[0], bool) for part in parts.values())  # False equals 0
    call = (func, truths, replaced(args, written), *replaced(kwargs, written).items())
    try:
        return _AT_POINTS[call]
    except KeyError:
        known = True
    except TypeError:  # a list in a call
        known = False
    of_points = {key: torch.tensor(part.at, dtype=_dtype_of(part.at)) for key, part in parts.items()}
    others = [tensor for tensor in tensors_in((args, kwargs)) if id(tensor) not in parts]
    of_points |= {id(tensor): tensor.detach().to("cpu", torch.float64).flatten() for tensor in others}
    with torch.no_grad():
        at: Points = tuple(func(*replaced(args, of_points), **replaced(kwargs, of_points)).tolist())
    if known and not others:
        _AT_POINTS[call] = at
    return at


_AT_POINTS: dict[Any, Points] = {}  # by the function and its arguments


def _dtype_of(at: Points) -> torch.dtype:
    """The dtype of a function: a comparison, or float64."""
    return torch.bool if isinstance(at[0], bool) else torch.float64


def of_one_tensor(
    mode: Scope, func: Any, args: Any, kwargs: Any, parts: dict[int, Elementwise], linear: bool = False
) -> Tensor:
    """The result of a call as a function of one tensor, with the gradient of the composite in force.

    `linear` says that the call is linear in its `parts`.
    """
    if "inplace" in kwargs:
        kwargs = {name: value for name, value in kwargs.items() if name != "inplace"}
    at = at_points(func, args, kwargs, parts)
    tensors = [tensor for tensor in tensors_in((args, kwargs)) if id(tensor) in parts]
    source, constant = parts[id(tensors[0])].source, None
    for tensor in tensors:
        mark = mark_of(tensor)
        constant = constant or mark.constant
        if mark.constant == DETACHED and tensor.requires_grad and func not in EXPONENTIALS:
            mode.refuse_constant(func, tensor)  # scores less their maximum, which only a softmax undoes
    if linear and constant is None and torch.is_grad_enabled() and all(part.linear for part in parts.values()):
        kept = mark_of(tensors[0]) if len(tensors) == 1 else NONE
        part = Elementwise(source, at, True, source._version)
        return marked(func(*args, **kwargs), kept._replace(elementwise=part, offset=at[0]))
    if not source.requires_grad:
        return marked(
            func(*args, **kwargs), Mark(constant, elementwise=Elementwise(source, at, False, source._version))
        )
    if _differs(at) and constant is None and not linear and len(tensors) == 1:
        # an activation of c z + d is one of that tensor, if not of z
        own = {id(tensors[0]): itself(tensors[0])}
        alone = at_points(func, args, kwargs, own)
        if not _differs(alone):
            source, at = tensors[0], alone
    return _computed(mode, func, args, kwargs, Elementwise(source, at, False, source._version))


def _differs(at: Points) -> bool:
    """True if a function is not 0 at 0, so that it is a gate; also if it is infinite there."""
    return not abs(at[0]) <= _ZERO


_SQUARES: Points = (0.0, POINTS[1] * POINTS[1], POINTS[2] * POINTS[2])


def _reads_squares(composite: Composite) -> bool:
    """True if the gradient of a norm, which is the true one, goes through squares, which have the identity rule."""
    return composite.activation.constant and not composite.normalization.constant


def _computed(mode: Scope, func: Any, args: Any, kwargs: Any, whole: Elementwise) -> Tensor:
    """The result of a call, which is the function `whole`, with the gradient of the composite in force."""
    plan = mode.plan
    held = plan.each(holds_activations)
    hidden = not torch.is_grad_enabled()
    of_norm = whole.at == _SQUARES and any(plan.each(_reads_squares))
    with torch.set_grad_enabled(not hidden and (of_norm or not all(held))):
        y = func(*args, **kwargs)  # with a graph if a composite has the true gradient
    if hidden:
        return marked(y, Mark(DETACHED, elementwise=whole))
    if _differs(whole.at):
        kind = EXPONENTIAL if func in EXPONENTIALS else GATE
        return marked(scaled(y, [0 if one else 1 for one in held], plan), Mark(kind, elementwise=whole))
    closed, ratio = RATIOS.get(func), None
    if closed is not None and args and args[0] is whole.source:
        ratio = partial(_ratio, closed, args[1:], kwargs)
    if not y.requires_grad:
        return marked(y, Mark(activation=True, elementwise=whole, pending=True, ratio=ratio))
    result = _identity(plan, y, whole, ratio)
    if of_norm:
        whole = whole._replace(square=y)
    return marked(result, Mark(activation=True, elementwise=whole))


def _ratio(closed: Callable[..., Tensor], others: Any, kwargs: Any, z: Tensor) -> Tensor:
    """The ratio f(z)/z of an activation with other arguments beside z."""
    return closed(z, *others, **kwargs)


def attached(mode: Scope, y: Tensor) -> None:
    """Give a pending tensor its graph, in which relevance passes to its source unchanged."""
    mark = mark_of(y)
    whole = mark.elementwise
    assert whole is not None
    if whole.version != whole.source._version:
        raise mode.refused("a tensor is changed in place that an activation was computed from, and read after it")
    with torch.enable_grad():
        torch.utils.swap_tensors(y, _identity(mode.plan, y, whole, mark.ratio))
    marked(y, mark._replace(pending=False, ratio=None))


def _identity(plan: Plan, y: Tensor, whole: Elementwise, closed: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """The value y = f(z); relevance passes to z unchanged, or the gradient through y's own graph.

    `closed` gives f(z)/z from z; without it y is divided by z. The ratio is computed in float32 at least.
    """
    z, slope = whole.source, whole.slope  # the rule keeps no tensor but those that are freed with the graph
    held = plan.each(holds_activations)
    kept = (z.detach(),) if closed is not None else (z.detach(), y.detach())

    def passed(dy: Tensor, z: Tensor, *y: Tensor) -> Tensor:
        ratio = _quotient(wide(z), wide(*y), slope) if closed is None else closed(wide(z))
        return dy * ratio.to(dy.dtype)

    if all(held):
        return ruled(y, lambda dy, *kept: (passed(dy, *kept),), kept, z)

    def choose(dy: Tensor, *kept: Tensor) -> tuple[Tensor | None, Tensor | None]:
        return (passed(dy, *kept), None) if held[plan.current] else (None, dy)

    return ruled(y, choose, kept, z, y)


def _quotient(z: Tensor, y: Tensor, slope: float) -> Tensor:
    """y / z for y = f(z), elementwise; the slope of f where z is 0."""
    zero = z == 0
    return torch.where(zero, slope, y / torch.where(zero, 1, z))


def reattached(mode: Scope, y: Tensor) -> Tensor:
    """The output y of an autograd function that was seen to compute an elementwise function, with the identity rule."""
    whole = mark_of(y).elementwise
    assert whole is not None
    return marked(_identity(mode.plan, y, whole), Mark(activation=True, elementwise=whole))


# entries


_FUNCTIONS = (
    "gelu silu relu relu6 leaky_relu prelu elu celu selu tanh hardtanh hardswish mish softsign tanhshrink softshrink"
    " hardshrink threshold clamp clip clamp_min clamp_max expm1 pow square sigmoid logsigmoid hardsigmoid softplus exp"
    " exp2 erf log log1p log2 log10"
)


@rule(*_FUNCTIONS.split(), steps=True)
def activation(mode: Scope, func: Any, args: Any, kwargs: Any) -> Tensor:
    """An activation or a gate; a power between 0 and 1, or below 0, is a deviation."""
    parts = common_source(args, kwargs)
    if parts is None:
        raise mode.refused(f"no rule for {name_of(func)} of several tensors that carry relevance")
    if func in POWERS and isinstance(args[1], (int, float)) and args[1] < 1:
        mode.attach(args[0])
        return deviation(mode, func, args, kwargs)
    result = of_one_tensor(mode, func, args, kwargs, parts)
    if func in CLAMPS and not mark_of(result).constant and _is_around_zero(*args[1:], **kwargs):
        return marked(mode.attach(result), NONE)  # a limit of numbers, to which a model may add, as to any tensor
    return result


def _is_around_zero(min: Any = None, max: Any = None, **_: Any) -> bool:
    """True if a clamp lets small numbers of both signs pass."""
    return (min is None or float(min) < 0) and (max is None or float(max) > 0)


CLAMPS = {*spellings("clamp"), *spellings("clip")}
POWERS = {*spellings("pow")}
EXPONENTIALS = {*spellings("exp"), *spellings("exp2")}


@rule("eq", "ne", "lt", "le", "gt", "ge", "less", "greater", "greater_equal", "less_equal", "not_equal", hidden=True)
def comparison(mode: Scope, func: Any, args: Any, kwargs: Any) -> Tensor:
    """A comparison: a constant, which may choose between functions of the tensor that is compared."""
    result = func(*args, **kwargs)
    parts = common_source(args, kwargs)
    if not parts:
        return result
    first = next(iter(parts.values()))
    return marked(
        result, Mark(elementwise=Elementwise(first.source, at_points(func, args, kwargs, parts), False, first.version))
    )
