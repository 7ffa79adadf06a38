"""The mode in which a model runs: every torch function that it calls is looked up in the table of rules.

Rules change gradients and never values. A tensor carries relevance if it descends from a root. Each function that gets
one has an entry, or is refused by name. So is a tensor that carries relevance and was made where the mode did not see
it, in scripted or compiled code or in an autograd function: the mode marks the nodes of the graph that it lets arise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction

from closelook.lrp_core.operations.elementwise import attached, common_source, reattached
from closelook.lrp_core.operations.marks import (
    DETACHED,
    NONE,
    Mark,
    joined,
    mark_of,
    marked,
    replaced,
    tensors_in,
)
from closelook.lrp_core.operations.nodes import Plan
from closelook.lrp_core.operations.roots import LOOK_UPS, Roots
from closelook.lrp_core.operations.scope import Scope, name_of
from closelook.lrp_core.operations.stabilised import SUMS, stabilised_sum
from closelook.lrp_core.operations.table import PASS, TABLE, Entry
from closelook.lrp_core.records.types import UnsupportedModel

#: Nodes that autograd makes anew when a tensor is read whose base was changed in place. All are views.
_VIEWS: tuple[str, ...] = (
    "AsStridedBackward0",
    "SliceBackward0",
    "ViewBackward0",
    "SelectBackward0",
    "UnsafeViewBackward0",
)
_VIEWS += ("TransposeBackward0", "PermuteBackward0", "UnsqueezeBackward0", "SqueezeBackward1", "SplitBackward0")


class Operations(Scope):
    """The rules of a plan's composites, on the operations of the thread that enters the mode."""

    def __init__(self, plan: Plan, roots: Roots, model: nn.Module) -> None:
        super().__init__(plan, roots, model)
        self._constants: dict[int, tuple[Tensor, Tensor]] = {}  # by its id: a parameter, and that without a gradient

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        entry = TABLE.get(func)
        if entry is PASS:
            return func(*args, **kwargs)
        tensors = tensors_in(args)
        if kwargs:
            tensors += tensors_in(kwargs)
        carrying, pending, stand_ins, held = [], [], {}, False
        for tensor in tensors:
            if not tensor.requires_grad:
                mark = mark_of(tensor)
                if mark.pending:
                    pending.append(tensor)
                elif mark is not NONE:
                    held = True
                continue
            node: Any = tensor.grad_fn
            if node is not None and self.key in node.metadata:
                carrying.append(tensor)
            elif node is None and tensor not in self.roots:
                stand_ins[id(tensor)] = self._constant(tensor)
            else:
                carrying.append(self._seen(tensor))
                if carrying[-1] is not tensor:
                    stand_ins[id(tensor)] = carrying[-1]
        if stand_ins:
            args, kwargs = replaced(args, stand_ins), replaced(kwargs, stand_ins)
        if pending:
            if entry is not None and entry.steps and common_source(args, kwargs):
                held = True
            else:
                carrying += [self.attach(tensor) for tensor in pending]
        if not carrying and not held:
            result = self._of_constants(func, args, kwargs, tensors)
            if result is None or func not in LOOK_UPS:
                return result
        elif self.plain:
            result = self._unruled(func, entry, args, kwargs)
        elif not torch.is_grad_enabled() and (entry is None or not self._knows_hidden(entry, args, kwargs)):
            result = self.hidden(func, args, kwargs)
        elif entry is None:
            result = self._of_held(func, args, kwargs, carrying)
        else:
            if entry.carries is not None:
                self._check(func, entry, carrying, args, kwargs)
            result = entry.handler(self, func, args, kwargs)
            if self.stabilises and func in SUMS:
                result = stabilised_sum(result, self.plan)
        if entry is None or entry.in_place or result is None:
            self._admit(args[0] if result is None and args else result)
        elif type(result) is Tensor:
            node = result.grad_fn
            if node is not None:
                node.metadata[self.key] = True
        else:
            self._admit(result)
        return result

    def _of_constants(self, func: Any, args: Any, kwargs: Any, tensors: Sequence[Tensor]) -> Any:
        """The result of a function whose arguments carry no relevance: a root if it looks tokens up."""
        if func in LOOK_UPS:
            return self.roots.looked_up(func, args, kwargs)
        if func is torch.nn.functional.one_hot and self.roots.stream(tensors[0]) is not None:
            raise self.refused("one-hot rows of tokens, whose products with weights have no rule, stand for words")
        return func(*args, **kwargs)

    def _constant(self, parameter: Tensor) -> Tensor:
        """A parameter without its gradient."""
        known = self._constants.get(id(parameter))
        if known is None or known[0] is not parameter:
            known = self._constants[id(parameter)] = parameter, parameter.detach()
        return known[1]

    def _unruled(self, func: Any, entry: Entry | None, args: Any, kwargs: Any) -> Any:
        """The result of a function under the empty table: its rule finds roots, and nothing is refused."""
        if entry is None:
            return func(*args, **kwargs)
        try:
            return entry.handler(self, func, args, kwargs)
        except UnsupportedModel:
            return func(*args, **kwargs)

    # what carries relevance

    def attach(self, tensor: Tensor) -> Tensor:
        """The same tensor, with a graph if it was pending."""
        if mark_of(tensor).pending:
            attached(self, tensor)
            self._admit(tensor)
        return tensor

    def _is_parameter(self, tensor: Tensor) -> bool:
        """True for a leaf that requires a gradient and is no root: a parameter, which is a constant."""
        return tensor.is_leaf and tensor not in self.roots

    def _seen(self, tensor: Tensor) -> Tensor:
        """A tensor that carries relevance. Raises UnsupportedModel for one that the mode did not see arise."""
        node: Any = tensor.grad_fn
        if node is None or self.key in node.metadata:
            return tensor
        if self._is_new_view(node):
            node.metadata[self.key] = True
            return tensor
        mark = mark_of(tensor)
        if isinstance(node, BackwardCFunction):
            whole = mark.elementwise
            if mark.constant == DETACHED and whole is not None and whole.source.requires_grad:
                return reattached(self, tensor)
            if mark.constant and mark.constant != DETACHED:  # an autograd function of constants
                node.metadata[self.key] = True
                return tensor
        raise self.refused(f"{type(node).__name__} computed a tensor that carries relevance where rules do not see it")

    def _is_new_view(self, node: Any) -> bool:
        """True for the node of a view that autograd made anew below nodes that the mode has seen."""
        if isinstance(node, BackwardCFunction) or type(node).__name__ not in _VIEWS:
            return False
        return all(below is None or self.key in below.metadata for below, _ in node.next_functions)

    def _admit(self, result: Any) -> None:
        """Mark the nodes of the graph of a result that the mode has seen."""
        tensors = [result] if isinstance(result, Tensor) else tensors_in(result)
        todo: list[Any] = [tensor.grad_fn for tensor in tensors if tensor.requires_grad]
        while todo:
            node = todo.pop()
            if node is None or self.key in node.metadata:
                continue
            node.metadata[self.key] = True
            todo += [after for after, _ in node.next_functions]

    def _check(self, func: Any, entry: Entry, carrying: list[Tensor], args: Any, kwargs: Any) -> None:
        """Raise UnsupportedModel for relevance at an argument without a rule."""
        if len(carrying) == 1 and args and carrying[0] is args[0]:
            return
        assert entry.carries is not None
        allowed = tensors_in(args[: len(entry.carries)])
        allowed += tensors_in([kwargs[name] for name in entry.carries if name in kwargs])
        others = {id(tensor) for tensor in carrying} - {id(tensor) for tensor in allowed}
        if others:
            names = " and ".join(entry.carries)
            raise self.refused(f"no rule for {name_of(func)} with relevance in another argument than {names}")

    def _of_held(self, func: Any, args: Any, kwargs: Any, carrying: Sequence[Tensor]) -> Any:
        """The result of a function without a rule, a constant of constants. Raises UnsupportedModel for relevance."""
        if not all(mark_of(tensor).constant for tensor in carrying):
            raise self.refused(f"no rule for {name_of(func)} of a tensor that carries relevance")
        result = func(*args, **kwargs)
        mark = joined(map(mark_of, tensors_in((args, kwargs))))
        for tensor in tensors_in(result):
            if tensor.is_floating_point():
                marked(tensor, mark)
        return result

    @staticmethod
    def _knows_hidden(entry: Entry, args: Any, kwargs: Any) -> bool:
        """True if an entry's rule is the same where gradients are disabled: for choices, and in autograd functions."""
        return entry.hidden or (entry.steps and not entry.in_place and bool(common_source(args, kwargs)))

    def hidden(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The result of a function of what carries relevance while gradients are disabled.

        It is a constant, from which a model may choose (keys, experts), and has lost the relevance of its arguments.
        """
        tensors = tensors_in((args, kwargs))
        free = any(tensor.requires_grad and not mark_of(tensor).constant for tensor in tensors)
        reason = DETACHED if free else joined(map(mark_of, tensors)).constant
        entry = TABLE.get(func)
        if entry is not None and entry.in_place and args[0].requires_grad:
            raise self.refused(f"{name_of(func)} changes a tensor that carries relevance with gradients disabled")
        result = func(*args, **kwargs)
        for tensor in tensors_in(args[0] if result is None else result):
            if tensor.is_floating_point() and not tensor.requires_grad:
                marked(tensor, Mark(reason))
        return result

    def check(self, output: Any) -> None:
        """Raise UnsupportedModel for an output of the model that the mode did not see arise."""
        for tensor in tensors_in(output):
            self.attach(tensor)
            if tensor.requires_grad and not self._is_parameter(tensor):
                self._seen(tensor)

    def end(self, numbers: Iterable[Tensor]) -> None:
        """End the forward pass. Raises UnsupportedModel for explained numbers without relevance."""
        for number in numbers:
            if not number.requires_grad:
                raise self.refused("the explained number does not depend on the batch's tokens, or is constant")
            if self.rules_layers:
                self.layers.group(number)
