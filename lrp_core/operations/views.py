"""Operations that are linear in what carries relevance: their gradient is their rule."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from closelook.lrp_core.operations import marks
from closelook.lrp_core.operations.elementwise import common_source, of_one_tensor
from closelook.lrp_core.operations.marks import NONE, Mark, joined, mark_of, marked, tensors_in
from closelook.lrp_core.operations.nodes import holds_activations, scaled
from closelook.lrp_core.operations.norms import arguments
from closelook.lrp_core.operations.scope import Scope
from closelook.lrp_core.operations.table import PASS, TABLE, Entry, only_called, rule, spellings
from closelook.lrp_core.rules.records import Composite


@rule("view", "reshape", "flatten", "unflatten", "ravel", "squeeze", "unsqueeze", "expand")
@rule("broadcast_to", "repeat", "repeat_interleave", "tile", "permute", "transpose", "t", "swapaxes")
@rule("swapdims", "movedim", "moveaxis", "adjoint", "contiguous", "clone", "type", "float", "double")
@rule("half", "bfloat16", "cpu", "cuda", "select", "narrow", "chunk", "split", "split_with_sizes", "tensor_split")
@rule("unbind", "index_select", "getitem", "take_along_dim", "roll", "flip", "diagonal", "diag_embed", "unfold")
@rule(
    "as_strided",
    "rot90",
    "pad",
    "tril",
    "triu",
    "real",
    "alias",
    "hsplit",
    "vsplit",
    "dsplit",
    "unsafe_chunk",
    "detach_copy",
)
@rule("unsafe_split", "view_as_complex", "view_as_real", "pixel_shuffle", "pixel_unshuffle", "dropout1d")
@rule("fft", "fft2", "fftn", "ifft", "ifft2", "ifftn", "rfft", "irfft")
def view(mode: Scope, func: Any, args: Any, kwargs: Any) -> Any:
    """A part of a tensor, or the tensor in another shape, order or precision."""
    result = func(*args, **kwargs)
    kept = mark_of(args[0] if args else kwargs["input"]).kept()
    if kept is not NONE:
        for tensor in tensors_in(result):
            marked(tensor, kept)
    return result


@rule("view_as", "reshape_as", "expand_as", "type_as", hidden=True)
def like(mode: Scope, func: Any, args: Any, kwargs: Any) -> Tensor:
    """A tensor in the shape or precision of another, whose numbers do not matter."""
    x, other = args
    args = x, other.detach()
    if not x.requires_grad and mark_of(x) is NONE:
        return func(*args)
    return view(mode, func, args, kwargs) if torch.is_grad_enabled() else mode.hidden(func, args, kwargs)


def read_of(name: str) -> Any:
    """The function that torch calls where the attribute `name` of a tensor is read."""
    return getattr(Tensor, name).__get__


for _name in ("T", "mT", "H", "mH", "real"):
    TABLE[read_of(_name)] = Entry(view, None)


@rule("to", hidden=True)
def cast(mode: Scope, func: Any, args: Any, kwargs: Any) -> Tensor:
    """A tensor in another precision or on another device; a function of one tensor stays one."""
    if not torch.is_grad_enabled() and not mark_of(args[0]).constant:
        return mode.hidden(func, args, kwargs)
    result = func(*args, **kwargs)
    return result if result is args[0] else marked(result, mark_of(args[0]))


@rule("gather")
def gather(mode: Scope, func: Any, args: Any, kwargs: Any) -> Tensor:
    """Entries by index; those that the indices of a choice of experts select are constants (routing)."""
    indices = next(tensor for tensor in tensors_in((args[1:], kwargs)) if not tensor.is_floating_point())
    if mark_of(indices).routes:
        return constant(mode, func, args, kwargs, marks.ROUTING)
    return view(mode, func, args, kwargs)


@rule("sum", "mean", "cumsum", "trace", "nanmean", "nansum")
def total(mode: Scope, func: Any, args: Any, kwargs: Any) -> Tensor:
    """A sum or mean of entries."""
    x = args[0] if args else kwargs["input"]
    mark = mark_of(x)
    if mark.elementwise is not None and mark.elementwise.square is not None:
        return func(mark.elementwise.square, *args[1:], **kwargs)
    result = func(*args, **kwargs)
    if mark.constant == marks.EXPONENTIAL:
        return marked(result, Mark(marks.SUM_OF_EXPONENTIALS))
    return marked(result, Mark(mark.constant)) if mark.constant else result


@rule("amax", "amin", "max", "min", "maximum", "minimum", "max_pool1d", "max_pool2d", "cummax", "abs", "aminmax")
@rule("adaptive_max_pool1d", "adaptive_max_pool2d", "median", "sort", "msort")
def choice(mode: Scope, func: Any, args: Any, kwargs: Any) -> Any:
    """Entries that are chosen by their values: the gradient goes to the chosen ones."""
    if len(list(tensors_in(args))) > 1:
        parts = common_source(args, kwargs)
        if parts:
            return of_one_tensor(mode, func, args, kwargs, parts)
    result = _joined(func(*args, **kwargs), mode, func, args, kwargs)
    if func in _MAXIMA and len(tensors_in((args, kwargs))) == 1:
        for tensor in tensors_in(result):
            marked(tensor, mark_of(tensor)._replace(maximum=args[0]))
    return result


_MAXIMA = frozenset(func for name in ("amax", "max") for func in spellings(name))


@rule("cat", "concat", "concatenate", "stack", "hstack", "vstack", "column_stack")
def joining(mode: Scope, func: Any, args: Any, kwargs: Any) -> Tensor:
    """Tensors side by side."""
    args = mode.roots.inserted(args)
    result = _joined(func(*args, **kwargs), mode, func, args, kwargs)
    mode.roots.capture(result)
    return result


@rule("add", "sub", "subtract", "rsub", steps=True)
def add(mode: Scope, func: Any, args: Any, kwargs: Any) -> Tensor:
    """A sum or difference."""
    parts = common_source(args, kwargs)
    if parts:
        return of_one_tensor(mode, func, args, kwargs, parts, linear=True)
    a, b = args[:2]
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        if func in _DIFFERENCES and mark_of(b).maximum is a and (b.numel() == 1 or b.shape == (*a.shape[:-1], 1)):
            return marked(func(*args, **kwargs), Mark(mark_of(b).constant, unshifted=a))
        args = mode.roots.added(b, a), mode.roots.added(a, b), *args[2:]
        layer = mode.layers.by_node.get(a.grad_fn)
        if layer is not None and not b.requires_grad and b.numel() == b.shape[-1]:
            layer.added = b
    return _joined(func(*args, **kwargs), mode, func, args, kwargs)


@rule("lerp", carries=("input", "end"))
def mixture(mode: Scope, func: Any, args: Any, kwargs: Any) -> Tensor:
    """A sum with constant weights."""
    return add(mode, func, args, kwargs)


_DIFFERENCES = frozenset(func for name in ("sub", "subtract") for func in spellings(name)) - {Tensor.__rsub__}


@rule("neg", "negative", "positive", steps=True)
def negative(mode: Scope, func: Any, args: Any, kwargs: Any) -> Tensor:
    """A tensor of reversed sign."""
    parts = common_source(args, kwargs)
    assert parts
    return of_one_tensor(mode, func, args, kwargs, parts, linear=True)


@rule("where", "masked_fill", "nan_to_num", "masked_scatter", "index_add", "scatter_add", "scatter", "index_copy")
@rule("index_put", "index_fill", "slice_scatter", "select_scatter", "masked_select", "scatter_reduce", "put", "take")
def merging(mode: Scope, func: Any, args: Any, kwargs: Any) -> Tensor:
    """Entries of one tensor or of another, by a constant mask or by indices."""
    parts = common_source(args, kwargs)
    if parts and any(isinstance(part.at[0], bool) for part in parts.values()):
        return of_one_tensor(mode, func, args, kwargs, parts)
    return _joined(func(*args, **kwargs), mode, func, args, kwargs)


@rule("dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout", "dropout2d")
def dropout(mode: Scope, func: Any, args: Any, kwargs: Any) -> Tensor:
    """Dropout, which does nothing in evaluation."""
    result = func(*args, **kwargs)
    _, p, training, train = arguments(args, kwargs, ("input", "p", "training", "train"))
    trains = training or train or (training is None and train is None)
    if trains and p != 0:
        raise mode.refused("dropout drops relevance: put the model into evaluation by model.eval()")
    return marked(result, mark_of(args[0]))


@rule("avg_pool1d", "avg_pool2d", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "interpolate", "upsample", "fold")
def pooling(mode: Scope, func: Any, args: Any, kwargs: Any) -> Tensor:
    """Means over windows."""
    return func(*args, **kwargs)


def _of_choices(composite: Composite) -> float:
    """The factor of the gradient of what a choice of experts selects."""
    return 1.0 if composite.name == "plain" else 0.0


def constant(mode: Scope, func: Any, args: Any, kwargs: Any, reason: str) -> Any:
    """The result of a call, held constant for a reason; with its own gradient under the plain composite."""
    result = func(*args, **kwargs)
    factors = mode.plan.each(_of_choices)

    def held(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if not value.is_floating_point():
            return marked(value, Mark(routes=True))
        return marked(scaled(value, factors, mode.plan), Mark(reason))

    return held(result) if isinstance(result, Tensor) else type(result)(map(held, result))


@rule("topk", hidden=True)
def topk(mode: Scope, func: Any, args: Any, kwargs: Any) -> Any:
    """The largest entries: the choice of experts and their weights are constants."""
    return constant(mode, func, args, kwargs, marks.ROUTING)


@rule("logsumexp")
def log_of_sum(mode: Scope, func: Any, args: Any, kwargs: Any) -> Tensor:
    """The logarithm of a sum of exponentials: a gate (the share of attention that a sink leaves to tokens)."""
    x = args[0] if args else kwargs["input"]
    factors = [0 if held else 1 for held in mode.plan.each(holds_activations)]
    return marked(scaled(func(*args, **kwargs), factors, mode.plan), Mark(mark_of(x).constant or marks.GATE))


@rule(
    "argmax",
    "argmin",
    "argsort",
    "isnan",
    "isinf",
    "isfinite",
    "logical_not",
    "logical_and",
    "logical_or",
    "sign",
    hidden=True,
)
@rule(
    "nonzero",
    "any",
    "all",
    "count_nonzero",
    "isclose",
    "allclose",
    "long",
    "int",
    "bool",
    "isneginf",
    "isposinf",
    hidden=True,
)
@rule(
    "zeros_like",
    "ones_like",
    "full_like",
    "empty_like",
    "rand_like",
    "randn_like",
    "one_hot",
    "bincount",
    "equal",
    hidden=True,
)
@rule(
    "new_zeros",
    "new_ones",
    "new_full",
    "new_empty",
    "new_tensor",
    "floor",
    "ceil",
    "round",
    "searchsorted",
    hidden=True,
)
def of_no_relevance(mode: Scope, func: Any, args: Any, kwargs: Any) -> Any:
    """A number that does not change with small changes of the tensor."""
    with torch.no_grad():
        return func(*args, **kwargs)


_DETACHING = frozenset({*spellings("detach"), read_of("data")})


@rule("detach", "item", "tolist", "numpy")
def detached(mode: Scope, func: Any, args: Any, kwargs: Any) -> Any:
    """A tensor without its graph: a constant, or one that has lost its relevance and may be used for choices alone."""
    mark = mark_of(args[0])
    if mark.maximum is not None and func in _DETACHING:
        return marked(func(*args, **kwargs), Mark(marks.DETACHED, maximum=mark.maximum))
    result = func(*args, **kwargs)
    if isinstance(result, Tensor):
        return marked(result, mark if mark.constant else Mark(marks.DETACHED))
    if not mark.constant:
        raise mode.refused(f"Tensor.{func.__name__} takes a tensor that carries relevance out of the graph")
    return result


def _in_place_write(mode: Scope, func: Any, args: Any, kwargs: Any) -> Any:
    """Writing into a tensor, which other names of it see."""
    for tensor in tensors_in((args[1:], kwargs)):
        if mark_of(tensor).constant and not mark_of(args[0]).constant:
            if args[0].requires_grad:
                mode.refuse_constant(func, tensor)
            marked(args[0], Mark(mark_of(tensor).constant))
    return func(*args, **kwargs)


for _writer in (Tensor.__setitem__, Tensor.copy_, Tensor.fill_, Tensor.zero_):
    TABLE[_writer] = Entry(_in_place_write, None, in_place=True)

for _name in ("size", "dim", "numel", "stride", "is_contiguous", "is_floating_point", "is_complex", "element_size"):
    TABLE |= dict.fromkeys(spellings(_name), PASS)
for _name in ("ndimension", "nelement", "storage_offset", "get_device", "__len__", "__hash__", "retain_grad"):
    TABLE |= dict.fromkeys(spellings(_name), PASS)
for _name in ("_set_grad_enabled", "__format__", "__repr__", "is_tensor", "data_ptr", "is_inference"):
    TABLE |= dict.fromkeys(spellings(_name), PASS)
TABLE[torch._C._set_grad_enabled] = PASS
for _attribute in dir(Tensor):
    _getter = getattr(Tensor, _attribute)
    if hasattr(_getter, "__get__") and type(_getter).__name__ in ("getset_descriptor", "property"):
        TABLE.setdefault(_getter.__get__, PASS)
TABLE[read_of("data")] = Entry(detached, None)
for _name in ("requires_grad", "grad_fn", "is_leaf"):
    TABLE[read_of(_name)] = Entry(only_called, None)  # of the graph, which a pending tensor gets before


def _joined(result: Any, mode: Scope, func: Any, args: Any, kwargs: Any) -> Any:
    """The result of a sum or union of tensors, with its mark. Raises for a constant beside what carries relevance."""
    tensors = [tensor for tensor in tensors_in((args, kwargs)) if tensor.is_floating_point()]
    free = [tensor for tensor in tensors if tensor.requires_grad and not mark_of(tensor).constant]
    held = [tensor for tensor in tensors if mark_of(tensor).constant]
    if free and held:
        held = [tensor for tensor in held if tensor.any()]  # a recurrence may start at a state of zeros
        mode.refuse_constant(func, *held)
    mark = joined(map(mark_of, free or tensors))
    if len(tensors) == 1 or (len(free) == 1 and not held and func in _KEEPING):
        mark = mark_of(free[0] if free else tensors[0]).kept()
    if mark is not NONE and mark != NONE:
        for tensor in tensors_in(result):
            marked(tensor, mark)
    return result


_KEEPING = frozenset(func for name in ("where", "masked_fill") for func in spellings(name))
