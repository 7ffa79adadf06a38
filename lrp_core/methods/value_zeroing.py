"""Value Zeroing (Mohebbi et al. 2023): how far a layer's output moves when one token's value vectors are zeroed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from closelook.lrp_core.device.precision import wide
from closelook.lrp_core.device.progress import part_of_work, tell
from closelook.lrp_core.device.transfer import to_device, to_host
from closelook.lrp_core.parts.block import BlockView
from closelook.lrp_core.readers.attention import Attended, Kernel, around_attention, weights_read
from closelook.lrp_core.records.explained import relevance_of, whichever
from closelook.lrp_core.records.types import Batch, Requests, Results
from closelook.lrp_core.records.variants import TOKEN_BUDGET, unpadded
from closelook.lrp_core.views.view import ModelView


@torch.no_grad()
def explain_many(
    view: ModelView,
    batch: Batch,
    requests: Requests,
    *,
    layers: bool = False,
    token_budget: int = TOKEN_BUDGET,
) -> Results:
    """The readout position's row of the product of all layers' maps; the same for all requests.

    A layer's map has, for each destination and source, the cosine distance by which the layer's output at the
    destination moves when the source's values are zeroed. Rows are divided by their sum (rows of zeros stay). No
    identity is added. With `layers` results also have the row of each layer's own map. Samples run one by one, without
    padding.
    """
    on_host, batch = batch.to("cpu"), batch.to(view.device)
    logits = view.logits(batch)
    tokens = torch.zeros(batch.input_ids.shape).to(batch.input_ids.device, logits.dtype)
    rows = torch.zeros(len(batch), view.n_layers, tokens.shape[1]).to(tokens)
    real = on_host.attention_mask.bool()
    samples = {i: _seen(view, unpadded(on_host, i)) for i in real.any(-1).nonzero().flatten().tolist()}
    by_sample = zip(samples.items(), _looks(view, list(samples.values())), strict=True)
    for number, ((i, sample), looks) in enumerate(by_sample):
        position = int(sample.position)
        with part_of_work(number, len(samples)):
            maps = _maps(view, sample, looks, token_budget)
        row = maps[-1][position]
        for below in reversed(maps[:-1]):
            row = row.to(below.device) @ below
        at = to_device(real[i].nonzero().flatten()[: len(row)], tokens.device)
        tokens[i, at] = row.to(tokens)
        rows[i, :, at] = torch.stack([of_layer[position].to(tokens) for of_layer in maps])
    explained = whichever(logits.shape[1] == 2).of(logits)
    result = relevance_of(tokens, logits, explained, conserves=False, layers=rows if layers else None)
    return dict.fromkeys(requests, result)


def _looks(view: ModelView, samples: Sequence[Batch]) -> list[list[Tensor]]:
    """True where any head gives a source attention, [destination, source] on the CPU, by sample and layer."""
    looks: list[Tensor] = []
    with weights_read(view, lambda layer, weights, mask: looks.append(weights[0].any(0))):
        for sample in samples:
            view.logits(sample)
    every = to_host(looks)
    return [every[first : first + view.n_layers] for first in range(0, len(every), view.n_layers)]


def _maps(view: ModelView, sample: Batch, looks: Sequence[Tensor], token_budget: int) -> list[Tensor]:
    """The map [T, T] of each layer for one sample without padding, in float32 at least; rows sum to 1 or are 0."""
    rows = [None] * (view.n_layers - 1) + [int(sample.position)]
    layers = [_Zeroing(*of_layer, token_budget) for of_layer in zip(view.blocks, rows, looks, strict=True)]
    around = {layer.block.attention: layer.attend for layer in layers}
    with ExitStack() as undo:
        undo.enter_context(around_attention(view, around, stock="eager"))
        for number, layer in enumerate(layers, start=1):
            block = layer.block
            undo.enter_context(block.attention.register_forward_pre_hook(layer.enter, with_kwargs=True))
            undo.enter_context(block.output.register_forward_pre_hook(layer.project))
            undo.enter_context(block.module.register_forward_hook(layer.run_again, with_kwargs=True))
            undo.enter_context(block.module.register_forward_hook(lambda *_, done=number: tell(done, len(layers))))
        view.logits(sample)
    return [layer.map for layer in layers]


class _Zeroing:
    """Hooks of a block that compute its map in the forward pass of a sample.

    Attention weights do not depend on values. So without a source's values, a context is the old context minus weight
    times value. Behind attention a block treats rows independently: it runs again with one row for each pair of a
    destination and a source to which it gives attention, [1, N, D].
    """

    map: Tensor  # [T, T], set by the forward pass

    def __init__(self, block: BlockView, row: int | None, looks: Tensor, token_budget: int) -> None:
        self.block = block
        self._row = row  # the only destination to compute; None: all
        self._looks = looks  # [T, T] bool on the CPU; pairs without attention move nothing
        self._token_budget = token_budget
        self._changed: Tensor | None = None  # changed contexts [1, N, H * K] while the block runs again, else None

    def enter(self, _: nn.Module, args: Any, options: Any) -> Any:
        """Pre-hook of attention: while the block runs again, give it the inputs of the first run."""
        if self._changed is None:
            self._read = args, options
            return None
        return None if self.block.family.attention_adds else self._read

    def attend(self, kernel: Kernel, module: nn.Module, *tensors: Any, **options: Any) -> Attended:
        """Stands in for the kernel: keeps weights and values; while the block runs again, returns zeros."""
        query, _, value, _ = tensors
        if self._changed is not None:
            return torch.zeros_like(query).transpose(1, 2), None  # `project` replaces these contexts
        context, weights = kernel(module, *tensors, **options)
        assert weights is not None  # the eager kernel returns them
        self._weights = weights[0]  # [H, T, T]
        self._values = value[0].repeat_interleave(weights.shape[1] // value.shape[1], 0)  # [H, T, K]
        return context, weights

    def project(self, _: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor] | None:
        """Pre-hook of the output projection: keeps the contexts, or gives it the changed ones when running again."""
        if self._changed is not None:
            return (self._changed,)
        self._context = args[0][0].unflatten(-1, (len(self._values), -1))  # [T, H, K]
        return None

    def run_again(self, module: nn.Module, args: tuple[Any, ...], options: dict[str, Any], output: Any) -> None:
        """Forward hook of the block: runs it again without the values of each source, and sets `map`."""
        hidden, *rest = args
        before = _directions(output)[0]  # [T, D]
        moved = before.new_zeros(len(before), len(before))
        if self._row is None:
            pairs = self._looks.nonzero()
        else:
            sources = self._looks[self._row].nonzero().flatten()
            pairs = torch.stack([torch.full_like(sources, self._row), sources], 1)
        for part in to_device(pairs, before.device).split(self._token_budget):
            at, source = part.unbind(1)
            lost = self._weights[:, at, source, None] * self._values[:, source]  # [H, N, K]
            self._changed = (self._context[at] - lost.transpose(0, 1)).flatten(1)[None]
            again = module.forward(hidden[:, at.to(hidden.device)], *rest, **options)
            gap = _directions(again)[0] - before[at]
            moved[at, source] = gap.square().sum(-1) / 2  # 1 - cosine, without its cancellation
        self._changed = None
        self.map = moved / moved.sum(-1, keepdim=True).clamp_min(torch.finfo(moved.dtype).tiny)


def _directions(output: Any) -> Tensor:
    """The output states of a block, normalised to length 1, [..., T, D], in float32 at least."""
    states = output if isinstance(output, Tensor) else output[0]
    return nn.functional.normalize(wide(states), dim=-1)


def _seen(view: ModelView, sample: Batch) -> Batch:
    """The sample without the tokens after the readout position of a causal model, which do not influence it."""
    if not view.kind.causal:
        return sample
    length = int(sample.position) + 1
    return sample.over_tokens(lambda of_tokens: of_tokens[:, :length], lambda positions: positions)
