"""The table of torch functions: for each, the arguments that may carry relevance, and the rule.

Modules of rules fill it. A function is written by its name; its spellings (`torch.mul`, `Tensor.mul`, `x * y`, ...)
share an entry.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from closelook.lrp_core.operations.marks import mark_of, marked, replaced
from closelook.lrp_core.operations.scope import Scope

#: From the mode, the function and its arguments to the function's result.
Handler = Callable[[Scope, Any, tuple[Any, ...], dict[str, Any]], Any]


@dataclass(frozen=True)
class Entry:
    """The rule of a torch function."""

    handler: Handler
    carries: (
        tuple[str, ...] | None
    )  # names of the arguments that may carry relevance, in order from the first; None: all
    in_place: bool = False  # whether the function changes its first argument
    hidden: bool = False  # whether its rule is the same where gradients are disabled
    steps: bool = False  # whether it may be a step of an elementwise function that a model writes as several


def only_called(mode: Scope, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function whose result depends on no numbers of a tensor, such as its shape."""
    return func(*args, **kwargs)


PASS = Entry(only_called, None)
TABLE: dict[Any, Entry] = {}
NAMES: dict[Handler, list[str]] = {}  # by rule: the functions that it is for
_SPACES = (torch, Tensor, torch.nn.functional, torch._C._nn, torch.special, torch.linalg, torch.fft)


def spellings(name: str) -> Iterator[Any]:
    """The torch functions of that name, and the operators that Python writes for it.

    >>> torch.Tensor.__rsub__ in set(spellings("sub"))
    True
    """
    operator = {"div": "truediv"}.get(name, name)
    operators = [f"__{name}__", f"__r{name}__", f"__{operator}__", f"__r{operator}__"]
    for space, names in [*((space, [name]) for space in _SPACES), (Tensor, operators)]:
        yield from (getattr(space, each) for each in names if callable(getattr(space, each, None)))


def in_place_spellings(name: str) -> Iterator[Any]:
    """The in-place forms of a torch function."""
    for each in (f"{name}_", f"__i{name}__", f"__i{ {'div': 'truediv'}.get(name, name) }__"):
        for space in _SPACES:
            if hasattr(space, each):
                yield getattr(space, each)


def rule(
    *names: str, carries: tuple[str, ...] | None = None, steps: bool = False, hidden: bool = False
) -> Callable[[Handler], Handler]:
    """Enter the decorated function as the rule of the torch functions `names` and of their in-place forms."""

    def enter(handler: Handler) -> Handler:
        NAMES[handler] = [*names, *NAMES.get(handler, ())]
        for name in names:
            for func in spellings(name):
                TABLE[func] = Entry(handler, carries, hidden=hidden, steps=steps)
            for func in in_place_spellings(name):
                TABLE[func] = Entry(_in_place(handler, name), carries, in_place=True)
        return handler

    return enter


def _in_place(handler: Handler, name: str) -> Handler:
    """The rule of an in-place function: the rule of the function, whose result is copied to the first argument."""
    func = getattr(Tensor, name, None) or next(spellings(name))

    def copied(mode: Scope, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        target: Tensor = args[0]
        before = marked(target.clone(), mark_of(target))  # its numbers, which the backward pass may need
        result = mode.attach(handler(mode, func, replaced(args, {id(target): before}), kwargs))
        target.copy_(result)
        return marked(target, mark_of(result))

    return copied


def opened(func: Any) -> Any:
    """A copy of a function of `torch.nn.functional` that calls the mode for the functions in it, not for itself."""
    inside = {**func.__globals__, "has_torch_function": lambda *_: False}
    inside |= {name: lambda *_: False for name in ("has_torch_function_unary", "has_torch_function_variadic")}
    return types.FunctionType(func.__code__, inside, func.__name__, func.__defaults__, func.__closure__)
