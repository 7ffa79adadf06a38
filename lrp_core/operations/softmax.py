"""The softmax of attention and its rules.

By default the rule is the true gradient (AttnLRP proposition 3.1; Close Look C.6). A rule turns the gradient ds at the
weights s = softmax(x) into the gradient at the scores x, all [..., T]; R = s ds is the relevance of the weights. A
maximum that a model subtracts from its scores before is undone, since it changes no weight.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from closelook.lrp_core.operations import marks
from closelook.lrp_core.operations.marks import Mark, mark_of, marked
from closelook.lrp_core.operations.nodes import ruled, scaled, with_value
from closelook.lrp_core.operations.norms import arguments
from closelook.lrp_core.operations.products import holds_weights
from closelook.lrp_core.operations.scope import Scope
from closelook.lrp_core.operations.table import rule
from closelook.lrp_core.rules.records import Composite

_HIDDEN = -1e3  # a score below this, whose weight is 0, is masked


def backward_of(composite: Composite) -> Any:
    """The function of a composite's rule of the softmax; None for the true gradient."""
    return composite.softmax.backward


def _factor(composite: Composite) -> float:
    """The factor of the gradient of attention weights."""
    return 0.0 if holds_weights(composite) else 1.0


@rule("softmax", carries=("input",))
def softmax(mode: Scope, func: Any, args: Any, kwargs: Any) -> Tensor:
    """The softmax, whose result is held constant by composites with constant attention weights."""
    x = args[0] if args else kwargs["input"]
    plan = mode.plan
    if mark_of(x).constant == marks.ROUTING:
        return marked(func(*args, **kwargs), Mark(marks.ROUTING))
    axis = arguments(args, kwargs, ("input", "dim"))[1]
    unshifted = mark_of(x).unshifted
    if unshifted is not None and axis in (-1, x.dim() - 1):
        with torch.no_grad():
            stock = func(*args, **kwargs)
        others = {name: value for name, value in kwargs.items() if name != "input"}
        return with_value(softmax(mode, func, (unshifted.to(x.dtype), *args[1:]), others), stock)
    mode.refuse_constant(func, x)
    rules = plan.each(backward_of)
    if all(plan.each(holds_weights)):
        return marked(func(x.detach(), *args[1:], **kwargs), Mark(marks.WEIGHTS))
    if not any(rules):
        return marked(scaled(func(*args, **kwargs), plan.each(_factor), plan), Mark(weights=x.grad_fn))
    weights = func(x.detach(), *args[1:], **kwargs)

    def gradient(ds: Tensor, x: Tensor, s: Tensor) -> tuple[Tensor | None]:
        if holds_weights(plan.composite):
            return (None,)
        ds, x, s = (tensor.movedim(axis, -1) for tensor in (ds.to(s.dtype), x.to(s.dtype), s))
        chosen = plan.composite.softmax.backward
        if chosen is None:
            return ((s * (ds - (ds * s).sum(-1, keepdim=True))).movedim(-1, axis),)
        sees_nothing = x.amax(-1, keepdim=True) < _HIDDEN
        hidden = (x < _HIDDEN) & ((s == 0) | sees_nothing)
        return (chosen(ds, x.masked_fill(hidden, 0), s, hidden).movedim(-1, axis),)

    return marked(ruled(weights, gradient, (x.detach(), weights), x), Mark(weights=x.grad_fn))
