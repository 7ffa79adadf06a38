"""Functions of tensors inside a model that rules let pass: reading their gradients, and adding rounding to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function_unary

from closelook.lrp_core.device.expert_rows import multiply_rows
from closelook.lrp_core.operations.linear import of_experts
from closelook.lrp_core.operations.nodes import ruled
from closelook.lrp_core.operations.scope import Scope
from closelook.lrp_core.operations.table import TABLE, Entry
from closelook.lrp_core.operations.views import view

Read = Callable[[Tensor, Tensor], None]  # reads a gradient and a value


def watched(x: Tensor, read: Callable[..., None], keep: bool = True) -> Tensor:
    """The same x; `read(gradient, x)` is called when the gradient of this use of x arrives in a backward pass.

    Without `keep` values are not kept in memory, and `read` gets the gradient alone.
    """
    if not x.requires_grad:
        return x
    if has_torch_function_unary(x):
        result: Tensor = handle_torch_function(watched, (x,), x, read, keep)
        return result

    def rule(gradient: Tensor, *values: Tensor) -> tuple[Tensor]:
        read(gradient, *values)
        return (gradient,)

    return ruled(x, rule, (x.detach(),) if keep else (), x)


def shifted(x: Tensor, shift: Callable[[Tensor], Tensor]) -> Tensor:
    """x plus `shift` of its numbers, which is a constant."""
    if has_torch_function_unary(x):
        result: Tensor = handle_torch_function(shifted, (x,), x, shift)
        return result
    return x + shift(x.detach())


def embedded(_: nn.Module | None, args: Any, embeddings: Tensor) -> Tensor:
    """Forward hook of a module that computes more than a look-up of embeddings: its output is a root."""
    if has_torch_function_unary(embeddings):
        result: Tensor = handle_torch_function(embedded, (embeddings,), None, (), embeddings)
        return result
    return embeddings


def put_out(mode: Scope, func: Any, args: Any, kwargs: Any) -> Tensor:
    """The embeddings of `embedded` as a root."""
    return mode.roots.put_out(args[-1])


def read_from(logits: Tensor, states: Tensor, rows: Tensor, ids: Tensor) -> Tensor:
    """The same `logits` [R, N, V] of `states` [R, N, D], with the gradient of those of `ids` [R, N, C] alone."""
    if has_torch_function_unary(logits):
        result: Tensor = handle_torch_function(read_from, (logits,), logits, states, rows, ids)
        return result
    return logits


def read_out(mode: Scope, func: Any, args: Any, kwargs: Any) -> Tensor:
    """The rule of `read_from`; rules of linear layers need all weights."""
    logits, states, rows, ids = args
    if mode.rules_layers or not states.requires_grad:
        return logits

    def rule(gradient: Tensor, rows: Tensor) -> tuple[Tensor]:
        of_ids = gradient.gather(2, ids.to(gradient.device))
        return ((of_ids[..., None, :] @ rows.to(gradient.dtype))[..., 0, :],)

    return ruled(logits, rule, (rows,), states)


TABLE[multiply_rows] = Entry(of_experts, ("x",))
TABLE[read_from] = Entry(read_out, None)
TABLE[embedded] = Entry(put_out, None)
TABLE[shifted] = Entry(view, None)
TABLE[watched] = Entry(view, None)  # a tensor that is watched is a view of itself
