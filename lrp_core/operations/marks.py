"""Facts about tensors that rules need beside their values. A mark is an attribute of the tensor that it describes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

_ATTRIBUTE = "_closelook_mark"
INSERTED = "inserted"  # the stream of tokens that a model puts beside the batch's own

#: Reasons why rules hold a tensor constant although it depends on relevance.
GATE, EXPONENTIAL, SUM_OF_EXPONENTIALS = "gate", "exponential", "sum of exponentials"
DEVIATION, ROUTING, WEIGHTS, DETACHED = "deviation", "routing", "attention weights", "detached"

#: Where functions are tried to tell activations from gates: 0, and a step to either side for the slope there.
_STEP = 1e-4
Points = tuple[float, float, float]  # numbers of a function at these three; truth values of a comparison
POINTS: Points = (0.0, _STEP, -_STEP)


class Elementwise(NamedTuple):
    """A tensor as an elementwise function f of another tensor z, which a model may write as several operations."""

    source: Tensor  # z
    at: Points  # f at POINTS
    linear: bool  # whether f is c z + d
    version: int = -1  # the source's version; it is another tensor after a change in place
    square: Tensor | None = None  # f is z^2: its value with its own graph, if a composite has norms' true gradients

    @property
    def slope(self) -> float:
        """The slope of f at 0."""
        return (self.at[1] - self.at[2]) / (2 * _STEP)


class Mark(NamedTuple):
    """Facts about a tensor."""

    constant: str | None = None  # the reason why rules hold it constant
    activation: bool = False  # an activation, or a linear function of one without weights: the gate of a product
    weights: Any = None  # of attention weights: the node of the scores
    embedding: str | None = None  # the stream of tokens that it embeds; embeddings of positions may be added to it
    routes: bool = False  # indices of experts
    maximum: Tensor | None = None  # the tensor whose maximum it is
    unshifted: Tensor | None = None  # scores before their maximum was subtracted, which their softmax undoes
    offset: float = 0.0  # a number that was added to it
    elementwise: Elementwise | None = None
    pending: bool = (
        False  # without a graph as yet: it is a step of an activation, or one, and gets one where it is read
    )
    ratio: Any = None  # of a pending tensor: the closed form of f(z)/z as a function of z

    def kept(self) -> Mark:
        """The mark of a view of the tensor, or of the tensor times a constant."""
        if self.elementwise is None and self.maximum is None and self.unshifted is None:
            return self
        return self._replace(elementwise=None, maximum=None, unshifted=None)


NONE = Mark()


def mark_of(tensor: Tensor) -> Mark:
    """The mark of a tensor; NONE if it has none."""
    return getattr(tensor, _ATTRIBUTE, NONE)


def marked(tensor: Tensor, mark: Mark) -> Tensor:
    """The same tensor with a mark."""
    setattr(tensor, _ATTRIBUTE, mark)
    return tensor


def tensors_in(argument: Any) -> list[Tensor]:
    """The tensors in an argument of a function, or in its arguments, also inside lists, tuples and dictionaries."""
    if isinstance(argument, Tensor):
        return [argument]
    if isinstance(argument, dict):
        argument = argument.values()
    elif not isinstance(argument, (list, tuple)):
        return []
    found = []
    for part in argument:
        kind = type(part)
        if kind is Tensor:
            found.append(part)
        elif kind not in _WITHOUT_TENSORS:
            found += tensors_in(part)
    return found


_WITHOUT_TENSORS = frozenset({int, float, bool, str, type(None), torch.dtype, torch.device, slice})  # most arguments


def replaced(argument: Any, by: dict[int, Any]) -> Any:
    """An argument in which tensors are replaced: `by` is {id of a tensor: what is in its place}."""
    if isinstance(argument, Tensor):
        return by.get(id(argument), argument)
    if type(argument) in (list, tuple):
        return type(argument)(replaced(part, by) for part in argument)
    if type(argument) is dict:
        return {name: replaced(part, by) for name, part in argument.items()}
    return argument


def joined(marks: Iterable[Mark]) -> Mark:
    """The mark of a sum or union of tensors with these marks."""
    marks = list(marks)
    constant = next((mark.constant for mark in marks if mark.constant), None)
    streams = [mark.embedding for mark in marks if mark.embedding]
    return Mark(constant=constant, embedding=min(streams, key=lambda stream: stream == INSERTED, default=None))
