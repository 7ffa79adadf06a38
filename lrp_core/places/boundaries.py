"""Relevance at the boundaries between blocks, and the relevance that blocks keep, summed during the backward pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from closelook.lrp_core.device.precision import wide
from closelook.lrp_core.operations.watching import watched
from closelook.lrp_core.parts.block import BlockView
from closelook.lrp_core.parts.layers import weights_of
from closelook.lrp_core.places.reading import Reader, tap_bias, tap_input, tap_output
from closelook.lrp_core.records.types import Batch, UnsupportedMethod
from closelook.lrp_core.rules.records import Composite
from closelook.lrp_core.views.view import ModelView

#: Why a block keeps relevance: its biases absorb their share, and the softmax of attention absorbs some.
REASONS = ("biases", "attention")
_BIASES, _ATTENTION = range(len(REASONS))


class BoundaryRelevance(Reader):
    """Reads the relevance at every boundary between blocks, and the relevance that each block keeps."""

    def __init__(self, view: ModelView, batch: Batch, composites: Sequence[Composite]) -> None:
        super().__init__(view, batch, composites)
        if all(composite.linear.ruled for composite in composites):
            raise UnsupportedMethod("what biases keep is known with the epsilon rule only: ask for composite 'epsilon'")

    @contextmanager
    def tapping(self) -> Iterator[None]:
        """Inside, the inputs of all blocks, the output of the last, and modules with a bias are read."""
        blocks = self.view.blocks
        with ExitStack() as undo:
            for layer, block in enumerate(blocks):
                below = partial(tap_input, read=partial(self.cross, layer))
                undo.enter_context(block.module.register_forward_pre_hook(below))
                for module, bias in _biases(block):
                    hook = partial(tap_bias, read=partial(self.keep_bias, layer, bias))
                    undo.enter_context(module.register_forward_hook(hook))
            above = partial(tap_output, read=partial(self.cross, len(blocks)))
            undo.enter_context(blocks[-1].module.register_forward_hook(above))
            yield

    def before_attention(self, layer: int, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """Subtract the relevance of queries, keys and values from what attention keeps."""
        read = partial(self.keep, layer, _ATTENTION, -1)
        return [watched(tensor, read) for tensor in tensors]

    def after_attention(self, layer: int, context: Tensor) -> Tensor:
        """Add the relevance of the head outputs to what attention keeps."""
        return watched(context, partial(self.keep, layer, _ATTENTION, 1))

    def cross(self, boundary: int, gradient: Tensor, value: Tensor) -> None:
        """Sum the relevance of the residual stream [B, T, D] at a boundary: 0 is below the first block, L above all."""
        for name, measure in self.measures.items():
            by_token = measure(wide(gradient), wide(value)).sum(-1)  # [B, T]
            self._read[name]["boundaries", boundary] = by_token.sum(1)
            self._read[name]["peaks", boundary] = by_token.abs().amax(1)

    def keep(self, layer: int, reason: int, sign: int, gradient: Tensor, value: Tensor) -> None:
        """Add `sign` times the relevance of `value` [B, ...], or [B * T, ...], to what `layer` keeps for a reason.

        What a layer keeps is the relevance that comes from above (sign 1) minus what it passes on below (sign -1).
        `reason` is an index of REASONS. There is a sum for each method of `self.measures`.
        """
        for name, measure in self.measures.items():
            relevance = measure(wide(gradient), wide(value)).reshape(len(self.mask), -1).sum(1)  # [B]
            kept = self._read[name]
            before = kept.get((layer, reason))
            kept[layer, reason] = sign * relevance if before is None else before + sign * relevance

    def keep_bias(self, layer: int, bias: Tensor, gradient: Tensor) -> None:
        """Add what a module's `bias` [O] keeps of the relevance of its output [B, T, O]."""
        self.keep(layer, _BIASES, 1, gradient, bias.to(gradient.device).expand_as(gradient))

    def fields(self, name: str, composite: Composite, conserves: bool) -> dict[str, Tensor | None]:
        """Fields `boundaries` and `peaks` [B, L + 1] and `kept` [B, L, R], over the reasons of REASONS.

        Empty for methods that promise no sum, and under other rules of linear layers than epsilon, for which the
        relevance of biases is unknown.
        """
        if not conserves or composite.linear.ruled:
            return {}
        layers = range(self.view.n_layers)
        boundaries = range(len(layers) + 1)
        crossing, peaks = (self._stacked(name, [(field, at) for at in boundaries]) for field in ("boundaries", "peaks"))
        kept = torch.zeros_like(crossing[:, 1:, None].expand(-1, -1, len(REASONS)))
        for layer in layers:
            for reason in range(len(REASONS)):
                if (layer, reason) in self._read[name]:
                    kept[:, layer, reason] = self._read[name][layer, reason]
        return {"boundaries": crossing, "peaks": peaks, "kept": kept}


def _biases(block: BlockView) -> Iterator[tuple[nn.Module, Tensor]]:
    """The modules of a block that have a bias, with the bias [O]; a module that fuses projections comes once."""
    linear = (block.query, block.key, block.value, block.output, block.gate, block.up, block.down)
    for module in dict.fromkeys(module for module in linear if module is not None):
        with weights_of(module) as weights:
            bias = weights.bias
        if bias is not None:
            yield module, bias.detach()
    for norm in block.norms:
        _, bias = norm.parameters()
        if bias is not None:
            yield norm.module, bias
