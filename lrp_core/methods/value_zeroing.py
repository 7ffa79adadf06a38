"""Value Zeroing (Mohebbi et al. 2023): how far a layer's output moves when one token's value vectors are zeroed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lrp_core.attention import Kernel, around_attention
from lrp_core.explained import relevance_of, whichever
from lrp_core.parts import BlockView
from lrp_core.types import Batch, Relevance, Request
from lrp_core.variants import TOKEN_BUDGET, pieces, unpadded
from lrp_core.view import ModelView


@torch.no_grad()
def explain_many(
    view: ModelView,
    batch: Batch,
    requests: Sequence[Request],
    *,
    layers: bool = False,
    token_budget: int = TOKEN_BUDGET,
) -> dict[Request, Relevance]:
    """The predicted position's row of the product of all layers' maps, whatever is explained; no identity is added.

    A layer's map says how far, in cosine distance, each output moves without each token; its rows sum to 1 (a row that
    nothing moves is 0). With `layers`, the row of each layer's own map. Samples are run one by one, without padding.
    """
    batch = batch.to(view.device)
    with around_attention(view, {}):
        logits = view.logits(view.hidden(batch), batch)
    tokens = torch.zeros(batch.input_ids.shape).to(batch.input_ids.device, logits.dtype)
    rows = torch.zeros(len(batch), view.n_layers, tokens.shape[1]).to(tokens)
    for i, real in enumerate(batch.attention_mask.bool()):
        if not real.any():
            continue
        sample = unpadded(batch, i)
        position = int(sample.position)
        maps = layer_maps(view, _seen(view, sample), token_budget)
        row = maps[-1][position]
        for below in reversed(maps[:-1]):
            row = row.to(below.device) @ below
        at = real.nonzero().flatten()[: len(row)]
        tokens[i, at] = row.to(tokens)
        rows[i, :, at] = torch.stack([of_layer[position].to(tokens) for of_layer in maps])
    explained = whichever(logits.shape[1] == 2).of(logits)
    found = relevance_of(tokens, logits, explained, conserves=False, layers=rows if layers else None)
    return dict.fromkeys(requests, found)


def layer_maps(view: ModelView, sample: Batch, token_budget: int = TOKEN_BUDGET) -> list[Tensor]:
    """The map [T, T] of each layer for one sample without padding, in float32 at least; rows sum to 1 or are 0."""
    zeroing = [_Zeroing(block, token_budget) for block in view.blocks]
    with ExitStack() as undo:
        undo.enter_context(around_attention(view, {z.block.attention: z.attend for z in zeroing}, stock="eager"))
        for layer in zeroing:
            hook = layer.block.module.register_forward_hook(layer.run_again, with_kwargs=True)
            undo.callback(hook.remove)
        view.hidden(sample)
    return [layer.map for layer in zeroing]


class _Zeroing:
    """One layer of a forward of one sample.

    Attention weights do not depend on values, so a variant's context is the sample's minus what it has from one token.
    From the output projection on, all variants go through the block as rows; the sample's own residual is broadcast.
    """

    map: Tensor  # [T, T], there after the forward

    def __init__(self, block: BlockView, token_budget: int) -> None:
        self.block = block
        self._token_budget = token_budget

    def attend(
        self, kernel: Kernel, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any
    ) -> tuple[Tensor, Tensor | None]:
        context, weights = kernel(module, query, key, value, mask, **options)
        assert weights is not None  # the eager kernel returns them
        self._weights = weights[0]  # [H, T, T]
        self._values = value[0].repeat_interleave(weights.shape[1] // value.shape[1], 0)  # [H, T, K]
        return context, weights

    def run_again(self, module: nn.Module, args: tuple[Any, ...], options: dict[str, Any], output: Any) -> None:
        own = _directions(output)  # [1, T, D]
        length = own.shape[1]
        moved = own.new_zeros(length, length)
        for part in pieces(range(length), length, self._token_budget):
            without = slice(part.start, part.stop)
            with self._variants(without):
                changed = _directions(module.forward(*args, **options))  # [R, T, D]
            moved[:, without] = (changed - own).square().sum(-1).T / 2  # 1 - cosine, without its cancellation
        moved = moved * self._weights.any(0)  # elsewhere there is rounding only
        self.map = moved / moved.sum(-1, keepdim=True).clamp_min(torch.finfo(moved.dtype).tiny)

    @contextmanager
    def _variants(self, without: slice) -> Iterator[None]:
        """Inside, the output projection reads one row for each token that is left out, [R, T, H * K]."""
        handle = self.block.output.register_forward_pre_hook(partial(self._vary, without=without))
        try:
            yield
        finally:
            handle.remove()

    def _vary(self, _: nn.Module, args: tuple[Tensor, ...], without: slice) -> tuple[Tensor]:
        (context,) = args  # [1, T, H * K]
        lost = torch.einsum("hst,htk->tshk", self._weights[:, :, without], self._values[:, without])
        return (context - lost.flatten(2).to(context),)


def _directions(output: Any) -> Tensor:
    """The states that a block puts out, [..., T, D], as unit vectors in float32 at least."""
    states = output if isinstance(output, Tensor) else output[0]
    return nn.functional.normalize(states.to(torch.promote_types(states.dtype, torch.float32)), dim=-1)


def _seen(view: ModelView, sample: Batch) -> Batch:
    """The sample without what stands behind the prediction of a causal model, which has no say."""
    if not view.kind.causal:
        return sample
    return sample.over_tokens(lambda of_tokens: of_tokens[:, : int(sample.position) + 1], sample.position)
