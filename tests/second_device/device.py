"""A second device without hardware, so that code for GPUs is tried where there is none.

Tensors on the device "second" say that they are there, and torch and the product treat them so; their numbers lie in
main memory and are worked out by the CPU's kernels. An operation that takes tensors of both devices raises
:class:`MixedDevices` where CUDA does. What would make the host wait until the device has done its work (`item`, `bool`,
`nonzero`, copies from one to the other) is counted, by the line of the product that asks for it.

Not imitated: streams and results that are not there yet, errors that come later than their cause, memory of its own,
kernels that round otherwise, and what the product does for devices of the type "cuda" alone.
"""

from __future__ import annotations

import copy
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

from closelook.lrp_core import ModelView, Relevance
from closelook.lrp_core.device import transfer
from closelook.lrp_core.families.generic import GENERIC
from closelook.lrp_core.opening.model import view_of

NAME = "second"
aten = torch.ops.aten

_ROOT = str(Path(__file__).parents[2])
_PRODUCT = (f"{_ROOT}/src/closelook/",)
_BACKWARD = f"{_ROOT}/backward"
_PASSED_ON = "src/closelook/lrp_core/operations/embeddings.py"  # runs the model's own operations, as a mode
_TRANSPARENT = (str(Path(torch.__file__).parent), __file__, transfer.__file__)

#: Operations whose result, or the size of it, the host must know before it can go on.
_READS = {
    aten._local_scalar_dense.default: "reads a number (item, bool, int, float)",
    aten.equal.default: "equal",
    aten.nonzero.default: "nonzero",
    aten.masked_select.default: "masked_select",
    aten._unique.default: "unique",
    aten._unique2.default: "unique",
    aten.unique_dim.default: "unique",
    aten.unique_consecutive.default: "unique",
    aten.bincount.default: "bincount",
}
_COPIES = {aten._to_copy.default, aten.copy_.default}
_INDEXED = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
#: Beside pointwise operations, those that take a CPU tensor of one number as if it were a Python number.
_TAKE_NUMBERS = {*_INDEXED, aten.fill_.Tensor, aten.masked_fill.Tensor, aten.masked_fill_.Tensor, aten.fill.Tensor}


class MixedDevices(RuntimeError):
    """An operation was given tensors of both devices."""


class SecondDeviceTensor(torch.Tensor):
    """A tensor on the second device; `numbers` is the CPU tensor that holds what is in it."""

    numbers: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, numbers: Tensor) -> SecondDeviceTensor:
        layout = {"strides": numbers.stride(), "storage_offset": numbers.storage_offset(), "dtype": numbers.dtype}
        with torch.inference_mode(False):  # a view of a tensor from outside must not be an inference tensor
            made = torch.Tensor._make_wrapper_subclass(cls, numbers.shape, device=f"{NAME}:0", **layout)
        made.numbers = numbers
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        composed = func.decompose(*args, **(kwargs or {}))  # what inference mode hands over whole
        return _compute(func, args, kwargs or {}) if composed is NotImplemented else composed

    @property
    def data(self) -> Tensor:
        return self.detach()

    @data.setter
    def data(self, other: Tensor) -> None:
        assert isinstance(other, SecondDeviceTensor)
        torch.Tensor.data.__set__(self, other)
        self.numbers = other.numbers

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"{self.numbers!r} on {self.device}"

    def data_ptr(self) -> int:
        return self.numbers.data_ptr()

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        if not force:
            raise TypeError(f"can't convert {NAME}:0 device type tensor to numpy")
        return self.detach().cpu().numpy()


_waits: Counter[str] = Counter()


def _compute(func: Any, args: Any, kwargs: Any) -> Any:
    """Runs the operation on the numbers. Its result is on the device that it names, or else on the second one."""
    _note(func, args, kwargs)
    target = kwargs.get("device")
    on_cpu = {**kwargs, "device": torch.device("cpu")} if target is not None else kwargs
    result = _run(func, _each(_numbers, args), {name: _each(_numbers, value) for name, value in on_cpu.items()})
    target = _written(func, args, kwargs).device if func._schema.is_mutable else target
    if target is not None and torch.device(target).type != NAME:
        return result
    inputs = {id(leaf.numbers): leaf for leaf in _tensors(args, kwargs) if isinstance(leaf, SecondDeviceTensor)}
    for tensor in inputs.values():
        if (tensor.shape, tensor.stride()) != (tensor.numbers.shape, tensor.numbers.stride()):
            torch.Tensor.data.__set__(tensor, SecondDeviceTensor(tensor.numbers))  # its shape changed in place
    return _each(lambda numbers: inputs[id(numbers)] if id(numbers) in inputs else SecondDeviceTensor(numbers), result)


def _each(change: Callable[[Tensor], Any], value: Any) -> Any:
    """`value` with every tensor in it changed."""
    if isinstance(value, Tensor):
        return change(value)
    return type(value)(_each(change, part) for part in value) if isinstance(value, list | tuple) else value


def _numbers(tensor: Tensor) -> Tensor:
    return tensor.numbers if isinstance(tensor, SecondDeviceTensor) else tensor


def _tensors(args: Any, kwargs: Any) -> list[Tensor]:
    """Those that an operation is given, alone or in lists."""
    tensors: list[Tensor] = []
    _each(tensors.append, [*args, *kwargs.values()])
    return tensors


def _run(func: Any, args: Any, kwargs: Any) -> Any:
    if func is aten.histc.default and not args[0].is_floating_point():  # a GPU's kernel counts integers, too
        return func(args[0].double(), *args[1:], **kwargs).to(args[0].dtype)
    return func(*args, **kwargs)


def _written(func: Any, args: Any, kwargs: Any) -> Tensor:
    """The tensor that an operation writes to; of several, the first."""
    written = next(argument.name for argument in func._schema.arguments if argument.is_write)
    value = kwargs[written] if written in kwargs else args[0]
    return value[0] if isinstance(value, list | tuple) else value


def _note(func: Any, args: Any, kwargs: Any) -> None:
    """Counts what makes the host wait. Raises MixedDevices."""
    tensors = _tensors(args, kwargs)
    if func in _COPIES:
        source = args[0] if func is aten._to_copy.default else args[1]
        target = kwargs.get("device", args[0].device)
        from_pinned = kwargs.get("non_blocking") or (len(args) > 2 and args[2]) or _pinned()
        to = torch.device(target).type
        if source.device.type != to and not (to == NAME and from_pinned):
            _count(f"copy to {to}")
        return
    on_device = [tensor for tensor in tensors if isinstance(tensor, SecondDeviceTensor)]
    on_cpu = [tensor for tensor in tensors if not isinstance(tensor, SecondDeviceTensor)]
    if on_device and on_cpu:
        _check_mixture(func, args, kwargs, on_cpu)
    if on_device and func in _READS:
        _count(_READS[func])
    if on_device and func is aten.repeat_interleave.Tensor and kwargs.get("output_size") is None:
        _count("repeat_interleave without output_size")
    if on_device and func in _INDEXED and _asks_where(func, args):
        _count("index by a mask")


def _check_mixture(func: Any, args: Any, kwargs: Any, on_cpu: list[Tensor]) -> None:
    """Raises MixedDevices for what CUDA refuses. Indices may come from the CPU, which costs a copy."""
    target_on_device = not func._schema.is_mutable or _written(func, args, kwargs).device.type == NAME
    if func in _INDEXED and target_on_device:
        indices = [index for index in args[1] if isinstance(index, Tensor)]
        if any(not isinstance(index, SecondDeviceTensor) for index in indices):
            _count("index from the CPU")
        on_cpu = [tensor for tensor in on_cpu if all(tensor is not index for index in indices)]
        target_on_device = isinstance(args[0], SecondDeviceTensor)
    numbers = func in _TAKE_NUMBERS or torch.Tag.pointwise in func.tags
    if not target_on_device or any(tensor.dim() or not numbers for tensor in on_cpu):
        raise MixedDevices(f"{func} got tensors on cpu and on {NAME}:0")


def _asks_where(func: Any, args: Any) -> bool:
    """True if the host must know where a mask is true; it need not, to fill in a single number."""
    masks = any(isinstance(index, Tensor) and index.dtype == torch.bool for index in args[1])
    fills = func is not aten.index.Tensor and args[2].dim() == 0
    return masks and not fills


def _pinned() -> bool:
    """True if the product copies from memory that it would pin for a GPU; such a copy does not wait."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(_TRANSPARENT):
        if frame.f_code is transfer.to_device.__code__:
            return True
        frame = frame.f_back
    return False


def _count(event: str) -> None:
    _waits[f"{_line()}: {event}"] += 1


def _line() -> str:
    """The line that asks, without torch's own: `src/closelook/methods.py:45`, or the file of another library."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_TRANSPARENT):
        frame = frame.f_back
    if frame is None:
        return "backward"  # in a thread of torch's
    name = frame.f_code.co_filename
    return f"{name.removeprefix(_ROOT + '/')}:{frame.f_lineno}"


class _Hooks(torch._C._acc.PrivateUse1Hooks):
    def is_available(self) -> bool:
        return True

    def has_primary_context(self, _: int) -> bool:
        return True

    def is_built(self) -> bool:
        return True


class _Module(_DummyBackendModule):
    """The module that torch expects at `torch.second`."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def get_rng_state(self, _: Any = None) -> Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: Tensor, _: Any = None) -> None:
        torch.set_rng_state(state)


@cache
def introduce() -> list[torch.library.Library]:
    """Introduces the device to torch, once in a process."""
    _setup_privateuseone_for_python_backend(NAME, backend_module=_Module(), hook=_Hooks())
    every, of_aten = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    every.fallback(lambda func, *args, **kwargs: _compute(func, args, kwargs), "PrivateUse1")

    def copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:  # by torch.tensor
        return _compute(aten.copy_.default, (target, source, non_blocking), {})

    of_aten.impl("_copy_from", copy_from, "PrivateUse1")
    return [every, of_aten]


@contextmanager
def counted_waits() -> Iterator[Counter[str]]:
    """Gives a counter of the waits inside at lines of the product, and in backward passes, known at the end."""
    waits: Counter[str] = Counter()
    _waits.clear()
    yield waits
    ours = {line: count for line, count in _waits.items() if f"{_ROOT}/{line}".startswith((*_PRODUCT, _BACKWARD))}
    waits.update({line: count for line, count in ours.items() if not line.startswith(_PASSED_ON)})


def on_second_device(view: ModelView) -> ModelView:
    """A copy of the model, there."""
    introduce()
    family = GENERIC if view.family.is_generic else None
    return view_of(copy.deepcopy(view.model).to(NAME), family)


def numbers_of(value: Any) -> Any:
    """A Relevance, a tensor, or a list or dict of these, on the CPU, which counts as no wait."""
    if isinstance(value, Relevance):
        return value.mapped(_numbers)
    if isinstance(value, dict):
        return {name: numbers_of(part) for name, part in value.items()}
    return [numbers_of(part) for part in value] if isinstance(value, list) else _each(_numbers, value)
