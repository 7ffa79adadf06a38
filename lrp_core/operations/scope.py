"""What rules know of the forward pass that they act on."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from closelook.lrp_core.operations.layers import Layers
from closelook.lrp_core.operations.marks import DETACHED, mark_of
from closelook.lrp_core.operations.nodes import Plan
from closelook.lrp_core.operations.roots import Roots
from closelook.lrp_core.records.types import UnsupportedModel


class Scope(TorchFunctionMode):
    """A forward pass of a model: its plan, its roots and its linear layers, and the errors that refuse the model."""

    def __init__(self, plan: Plan, roots: Roots, model: nn.Module) -> None:
        super().__init__()
        self.plan, self.roots, self.model = plan, roots, model
        self.key = object()  # marks nodes of the graph; the mode itself would be kept alive by them
        self.layers = Layers()
        self.rules_layers = any(composite.linear.ruled for composite in plan.composites)
        self.stabilises = any(composite.stabiliser for composite in plan.composites)
        self.plain = all(composite.name == "plain" for composite in plan.composites)

    def refuse_constant(self, func: Any, *tensors: Any) -> None:
        """Raise UnsupportedModel for a constant that a function does not just multiply."""
        for tensor in tensors:
            if isinstance(tensor, Tensor) and mark_of(tensor).constant:
                what = func if isinstance(func, str) else name_of(func)
                if mark_of(tensor).constant == DETACHED:
                    raise self.refused(
                        f"{what} of a tensor that lost its relevance: detach takes a tensor that carries relevance out"
                        " of the graph, as does what runs with gradients disabled"
                    )
                raise self.refused(f"a {mark_of(tensor).constant} is constant, so {what} of it would lose relevance")

    def attach(self, tensor: Tensor) -> Tensor:
        """The same tensor, with a graph if it was pending."""
        raise NotImplementedError

    def hidden(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The result of a function of what carries relevance while gradients are disabled."""
        raise NotImplementedError

    # words of errors

    def refused(self, reason: str) -> UnsupportedModel:
        """The error that a model is refused for this reason, with the name of the module that runs."""
        name = self._running()
        return UnsupportedModel(f"{reason} ({name})" if name else reason)

    def _running(self) -> str:
        """The name of the innermost module of the model that is running, read off Python's stack."""
        names = {id(module): name for name, module in self.model.named_modules()}
        frame: Any = sys._getframe()
        while frame is not None:
            name = names.get(id(frame.f_locals.get("self")))
            if name is not None:
                return name or type(self.model).__name__
            frame = frame.f_back
        return ""


def name_of(func: Any) -> str:
    """A torch function's name as users write it: torch.cos."""
    name = getattr(func, "__name__", str(func))
    if hasattr(torch, name):
        return f"torch.{name}"
    return f"torch.nn.functional.{name}" if hasattr(torch.nn.functional, name) else f"Tensor.{name}"
