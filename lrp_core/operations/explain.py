"""Relevance of a batch's embeddings by rules on the operations of a model: one forward for all composites."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from closelook.lrp_core.device.precision import unrounded, wide
from closelook.lrp_core.operations.checkpointing import checkpointed
from closelook.lrp_core.operations.mode import Operations
from closelook.lrp_core.operations.nodes import Plan
from closelook.lrp_core.operations.roots import PATCHES, Root, Roots
from closelook.lrp_core.operations.watching import embedded
from closelook.lrp_core.records.types import UnsupportedModel
from closelook.lrp_core.rules.records import Composite

#: The names of a model's inputs that hold token ids.
ID_INPUTS = ("input_ids", "decoder_input_ids")
PIXELS = "pixel_values"


@dataclass(frozen=True)
class Forward:
    """A forward pass of a model, ready for backward passes under the composites of its plan."""

    plan: Plan
    roots: Roots
    output: Any  # what `readout` returned

    def gradients(self, number: Tensor, composite: Composite, keep: bool) -> list[tuple[Root, Tensor]]:
        """The roots, each with the gradient of the sum of `number` at it under a composite; `keep` keeps the graph.

        Of images the last root are the pixels [B, C, H, W].
        """
        self.plan.current = self.plan.composites.index(composite)
        roots = list(self.roots.found)
        if self.roots.pixels is not None:
            roots.append(Root(PIXELS, self.roots.pixels, words=True))
        values = [root.value for root in roots]
        gradients = torch.autograd.grad(number.sum(), values, retain_graph=keep, allow_unused=True)
        pairs = zip(roots, gradients, strict=True)
        return [(root, torch.zeros_like(root.value) if gradient is None else gradient) for root, gradient in pairs]


def run(
    model: nn.Module,
    inputs: Mapping[str, Any],
    readout: Callable[[Any], Mapping[str, Tensor]],
    composites: Sequence[Composite],
    dtype: torch.dtype | None = None,
    stacks: Sequence[str] = (),
    instead: Mapping[str, Tensor] | None = None,
) -> Forward:
    """Run `model(**inputs)` under the rules of `composites`; `readout` takes the explained numbers from its output.

    `inputs` hold token ids [B, T] as `input_ids` and, for the decoder of an encoder-decoder, `decoder_input_ids`; or
    images as `pixel_values`. `dtype` is the model's precision. The blocks of the lists at the paths `stacks` run again
    in the backward pass, to save memory. `instead` [B, T, D] takes the place of the embeddings of words, by the name of
    the input with their ids. Raises UnsupportedModel, with the name of a module, for an operation without a rule.
    """
    inputs = dict(inputs)
    for name, value in inputs.items():
        if isinstance(value, Tensor) and value.is_floating_point() and name not in (PIXELS, "attention_mask"):
            raise UnsupportedModel(f"{type(model).__name__} reads {name}, whose relevance is not defined")
    pixels = inputs.get(PIXELS)
    if pixels is not None:
        pixels = inputs[PIXELS] = pixels.detach().requires_grad_()
    _require_visible(model)
    roots = Roots({name: inputs[name] for name in ID_INPUTS if inputs.get(name) is not None}, pixels, instead)
    plan = Plan(tuple(composites))
    mode = Operations(plan, roots, model)
    if dtype is None:
        dtype = next(parameter.dtype for parameter in model.parameters() if parameter.is_floating_point())
    with torch.enable_grad():
        with mode, unrounded(dtype), _put_out(model), checkpointed(model, stacks, mode, dtype):
            output = model(**inputs)
        mode.check(output)
        numbers = readout(output)
    mode.end(numbers.values())
    for name in roots.ids or (PATCHES,):
        if not any(root.words and root.stream == name for root in roots.found):
            raise UnsupportedModel(f"{type(model).__name__} looks up no embeddings of the batch's {name}")
    return Forward(plan, roots, numbers)


@contextmanager
def _put_out(model: nn.Module) -> Iterator[None]:
    """Inside, roots are what embedding modules put out, such as a multiple of the embeddings that they look up."""
    with ExitStack() as undo:
        for module in model.modules():
            if isinstance(module, nn.Embedding) and type(module).forward is not nn.Embedding.forward:
                undo.enter_context(module.register_forward_hook(embedded))
        yield


def _require_visible(model: nn.Module) -> None:
    """Raise UnsupportedModel for hooks that change gradients, and for compiled modules: rules do not see them."""
    everywhere = nn.modules.module._global_backward_hooks or nn.modules.module._global_backward_pre_hooks
    for name, module in model.named_modules():
        if everywhere or module._backward_hooks or module._backward_pre_hooks:
            raise UnsupportedModel(f"a backward hook changes gradients ({name or type(model).__name__})")
        if module._compiled_call_impl is not None or type(module).__module__.startswith("torch._dynamo"):
            raise UnsupportedModel(f"rules do not see into a compiled module ({name or type(model).__name__})")


@dataclass(frozen=True)
class RootRelevance:
    """Relevance at the roots of a stream of tokens under a composite, [B, T]."""

    partial: Tensor  # of the embeddings of words
    full: Tensor  # with positions and types


@dataclass(frozen=True)
class Explanation:
    """The explained numbers, and relevance by composite and stream (the name of the input that holds the tokens)."""

    numbers: Tensor  # [B]
    relevance: dict[Composite, dict[str, RootRelevance]]


def explain_operations(
    model: nn.Module,
    inputs: Mapping[str, Any],
    readout: Callable[[Any], Tensor],
    composites: Sequence[Composite],
) -> Explanation:
    """Explain the numbers [B] that `readout` reads from the output of `model(**inputs)`, under each composite.

    For `inputs`, and what is raised, see `run`.
    """
    forward = run(model, inputs, lambda output: {"number": readout(output)}, composites)
    number = forward.output["number"]
    relevance = {}
    for left, composite in zip(reversed(range(len(composites))), composites, strict=True):
        by_stream: dict[str, RootRelevance] = {}
        for root, gradient in forward.gradients(number, composite, keep=left > 0):
            if root.stream == PIXELS:
                continue
            tokens = wide(gradient * root.value.detach()).sum(-1)
            zeros = torch.zeros_like(tokens)
            before = by_stream.get(root.stream, RootRelevance(zeros, zeros))
            partial = before.partial + tokens if root.words else before.partial
            by_stream[root.stream] = RootRelevance(partial, before.full + tokens)
        relevance[composite] = by_stream
    return Explanation(number.detach(), relevance)
