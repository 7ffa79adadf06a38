"""Finds modules of a model in memory that compute something else than their class and weights say.

Hooks of the caller, a `forward` that was replaced and classes of the caller's own may change what a module computes,
such as layers with a LoRA adapter of one's own. Rules and readers use the weights of some modules and do not call
others: there the change would be ignored. All are tried on random tokens, if the model has any such module.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from closelook.lrp_core.families.generic import way_out
from closelook.lrp_core.parts.layers import ADDED_WEIGHTS, ALTERED, CONVOLUTION, LinearLayer, NormView
from closelook.lrp_core.readers.attention import Attended, Kernel, around_attention
from closelook.lrp_core.records.capabilities import ATTENTION
from closelook.lrp_core.records.types import Batch, UnsupportedModel, UserError
from closelook.lrp_core.verification.rounding import differ, unit_of
from closelook.lrp_core.verification.samples import random_rows
from closelook.lrp_core.verification.stock import explained_logits, stock_logits
from closelook.lrp_core.views.guard import undisturbed
from closelook.lrp_core.views.view import ModelView

_KNOWN = {"torch", "transformers", "peft", "accelerate", "closelook"}  # packages whose modules compute what they should
_TOKENS = 7  # of the text on which a model is tried


def may_be_altered(module: nn.Module, known: Collection[str] = _KNOWN) -> bool:
    """True if hooks, a replaced `forward` or a class of no `known` package may change what a module computes."""
    fields = vars(module)
    replaced = "forward" in fields and "_hf_hook" not in fields  # accelerate replaces it to move weights
    package = type(module).forward.__module__.partition(".")[0]
    return bool(module._forward_hooks or module._forward_pre_hooks) or replaced or package not in known


def trial_of(view: ModelView) -> tuple[dict[str, Any], float]:
    """(a view row of random tokens on which a model is tried, the bound within which equal computations `differ`)."""
    [row] = random_rows(view, (min(_TOKENS, view.max_length),))
    return row, max(8 * unit_of(view), 1e-3)


def note_altered(view: ModelView) -> None:
    """Enter modules that compute something else than their weights say in ALTERED.

    Raises UnsupportedModel if such a module changes the logits without being called by the view, if it is a norm, if it
    computes without the modules on which rules act, and if the model fails.
    """
    paths = {module: path for path, module in view.model.named_modules()}
    for module in paths:
        ALTERED.pop(module, None)
    known = {*_KNOWN, str(view.family.classes).partition(".")[0]}  # a package may bring the classes of its family
    doubtful = {module for module in paths if may_be_altered(module, known)}.union(_of_other_classes(view))
    if not doubtful:
        return
    row, bound = trial_of(view)
    with undisturbed(view), torch.inference_mode(False), torch.no_grad():
        batch = Batch.collate([row], pad_id=0)
        ours = _predicted(view, row, batch, paths, bound)
        for norm in view.norms():
            if norm.module in doubtful and _norm_differs(norm, bound):
                raise UnsupportedModel(
                    f"{type(view.model).__name__}: the norm {paths[norm.module]} computes something else than its "
                    f"weights say (a hook, or another class): undo the change{way_out(view.family)}"
                )
        for layer in view.linear_layers():
            if layer.module in doubtful and layer.group != CONVOLUTION and _layer_differs(layer, bound):
                ALTERED[layer.module] = paths[layer.module]
        others = [module for module in _others_read(view) if module in doubtful]

        def matter(modules: Sequence[nn.Module]) -> bool:
            """True if without the hooks of `modules` the logits differ, or if more than hooks is changed of one."""
            with _without_hooks(modules):
                if any(may_be_altered(module, known) for module in modules):
                    return True
                return differ(explained_logits(view, batch)[0], ours, bound)

        if others and matter(others):
            ALTERED.update({module: paths[module] for module in others if matter([module])})


def _predicted(
    view: ModelView, row: Mapping[str, Any], batch: Batch, paths: Mapping[nn.Module, str], bound: float
) -> Tensor:
    """The view's logits [V] for `row`, the only one of `batch`; `paths` are those of all modules.

    Raises UnsupportedModel as `note_altered`, but for norms.
    """
    name, called = type(view.model).__name__, set[nn.Module]()
    try:
        with warnings.catch_warnings(action="ignore"):  # of torch, about backward hooks
            theirs = stock_logits(view, row)
            with _noting_calls(view, called):
                ours = explained_logits(view, batch)[0]
    except UserError:
        raise
    except Exception as error:  # whatever the caller's code raises
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UnsupportedModel(
            f"{name} fails on a text of {_TOKENS} tokens ({reason}): undo the change{way_out(view.family)}"
        ) from error
    if differ(ours, theirs, bound):
        raise UnsupportedModel(
            f"{name} predicts something else than its parts: its class, its head or a hook changes the logits, which "
            f"no method would see; undo the change{way_out(view.family)}"
        )
    expected = {module: paths[module] for module in _ruled(view)}
    expected |= {module: f"the attention kernel in {paths[module]}" for module in _attending(view)}
    for module in expected:
        if module not in called:
            raise UnsupportedModel(
                f"{name} does not call {expected[module]}, unlike {view.family.title} of transformers (a replaced "
                f"forward, or another class): undo the change{way_out(view.family)}"
            )
    return ours


def _of_other_classes(view: ModelView) -> Iterator[nn.Module]:
    """Yield norms and linear layers of another class than the family has, such as a factorised linear layer."""
    for norm in view.norms():
        if isinstance(norm.module, nn.LayerNorm) != (norm.kind == "layer"):
            yield norm.module
    for layer in view.linear_layers():
        usual = isinstance(layer.module, (Conv1D if layer.transposed else nn.Linear, nn.Conv2d))
        if not usual and layer.module not in ADDED_WEIGHTS:
            yield layer.module


def _ruled(view: ModelView) -> Iterator[nn.Module]:
    """Yield the modules on which rules act, and which readers watch: norms, activations, linear layers and experts."""
    yield from (norm.module for norm in view.norms())
    yield from (layer.module for layer in view.linear_layers())
    for block in view.blocks:
        if block.activation is not None:
            yield block.activation
        if block.experts is not None:
            yield from (block.experts.router, block.experts.all, block.experts.all.act_fn)


def _attending(view: ModelView) -> Iterator[nn.Module]:
    """Yield the attention modules, if the family's attention weights can be read."""
    if ATTENTION in view.family.capabilities:
        yield from (attended.attention for attended in view.attentions)


@contextmanager
def _noting_calls(view: ModelView, called: set[nn.Module]) -> Iterator[None]:
    """Inside, modules of `_ruled` enter `called` when they run, and those of `_attending` when their kernel runs."""

    def attend(kernel: Kernel, module: nn.Module, *tensors: Any, **options: Any) -> Attended:
        called.add(module)
        return kernel(module, *tensors, **options)

    with ExitStack() as undo:
        for module in _ruled(view):
            undo.enter_context(module.register_forward_hook(lambda module, *_: called.add(module)))
        undo.enter_context(around_attention(view, dict.fromkeys(_attending(view), attend)))
        yield


def _norm_differs(norm: NormView, bound: float) -> bool:
    """True if a norm computes something else than its weights say."""

    def formula(x: Tensor) -> Tensor:
        if norm.kind == "layer":
            return nn.functional.layer_norm(x, weight.shape, weight, bias, norm.eps)
        return nn.functional.rms_norm(x, weight.shape, weight, norm.eps)

    try:
        weight, bias = norm.parameters()
        return _differs(norm.module, formula, weight, bound)
    except AttributeError:  # without the weights of its kind
        return True


def _layer_differs(layer: LinearLayer, bound: float) -> bool:
    """True if a linear layer has no weights of its own, or computes something else than these say."""
    try:
        weight, bias = layer.parameters()
        return _differs(layer.module, lambda x: nn.functional.linear(x, weight, bias), weight, bound)
    except (AttributeError, RuntimeError):  # no weight, or one of another shape
        return True


def _differs(module: nn.Module, formula: Callable[[Tensor], Tensor], weight: Tensor, bound: float) -> bool:
    """True if a module gives random states [1, T, in] another output than `formula`; `weight` is [in] or [out, in]."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(1, _TOKENS, weight.shape[-1], generator=generator, dtype=torch.float32)
    x = drawn.to(weight.device, weight.dtype)
    return differ(module(x.clone()), formula(x), bound)


def _others_read(view: ModelView) -> Iterator[nn.Module]:
    """Yield the embedding of positions or pixels, and the parts of blocks that have parts, such as attention.

    Some methods take their weights, or those of their parts, in place of what they compute.
    """
    if view.family.position_embedding is not None:
        yield from view.model.get_submodule(view.family.position_embedding).modules()
    for path in view.stacks:
        parts = view.model.get_submodule(path).modules()
        yield from (part for part in parts if next(part.children(), None) is not None)
    yield from (layer.module for layer in view.linear_layers() if layer.group == CONVOLUTION)


@contextmanager
def _without_hooks(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Inside, forward hooks and forward pre-hooks of `modules` do not run."""
    every = [hooks for module in modules for hooks in (module._forward_hooks, module._forward_pre_hooks)]
    kept = [dict(hooks) for hooks in every]
    try:
        for hooks in every:
            hooks.clear()
        yield
    finally:
        for hooks, entries in zip(every, kept, strict=True):
            hooks.update(entries)
