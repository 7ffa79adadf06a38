"""ALTI-Logit (Ferrando et al. 2023; Close Look B.1): a logit as a sum of contributions of tokens, MLPs and biases.

All contributions are linear in the explained number, so any number of explanations share one forward and its maps, and
so do the tokens of a span, whose contributions are added up.
Shapes: E explanations, N tokens of a span (1 without spans); otherwise as in `lrp_core.records.types`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from closelook.alti.layers import Layer, visiting
from closelook.alti.maps import Rollout, output_weights, pre_norm_map
from closelook.alti.transformed import Chunk
from closelook.lrp_core.device.precision import wide
from closelook.lrp_core.places.heads import pool
from closelook.lrp_core.records.explained import explained_by
from closelook.lrp_core.records.types import Batch
from closelook.lrp_core.views.repeated import TOKENS_AT_ONCE
from closelook.lrp_core.views.view import ModelView


@dataclass(frozen=True)
class LogitContributions:
    """The contribution of each part of the model to the explained number, [B, E, ...]; or [B, ...] for one explanation.

    `tokens`, `mlp`, `attention_bias` and `bias` sum to the explained number, up to rounding.
    """

    tokens: Tensor  # [B, E, T], contributions of attention moved to the input tokens; `initial` at the readout position
    attended: Tensor  # [B, E, T], the same without `initial`
    initial: Tensor  # [B, E], of the embeddings at the readout position
    attention: Tensor  # [B, E, L, T], of attention blocks, by source token, before they are moved to the inputs
    heads: Tensor  # [B, E, L, H], of attention blocks, by head
    pooled: Tensor  # [B, E, L, H, P], of attention blocks, by head and pooling
    mlp: Tensor  # [B, E, L], of MLPs, their biases included
    attention_bias: Tensor  # [B, E, L], of the biases of output projections
    bias: Tensor  # [B, E], of the biases of final norm and unembedding

    def of(self, explanation: int) -> LogitContributions:
        """The contributions for one explanation, given by its index."""
        return LogitContributions(**{name: value[:, explanation] for name, value in vars(self).items()})

    def total(self) -> Tensor:
        """The sum of all contributions for one explanation, [B]."""
        return self.tokens.sum(-1) + self.mlp.sum(-1) + self.attention_bias.sum(-1) + self.bias


def decompose(
    view: ModelView, batch: Batch, explanations: Sequence[str], chunk: Chunk
) -> tuple[Tensor, LogitContributions]:
    """Logits [B, 2] of target and foil ([B, 1] without foils), and the contributions to each explained number."""
    direction, bias = _direction(view, batch, explanations)
    parts = _Parts(batch.input_ids.shape[1], batch.read_positions, direction, view.n_layers, chunk)
    with ExitStack() as undo:
        undo.enter_context(visiting(view, parts.attention_block))
        for index, block in enumerate(view.blocks):
            undo.enter_context(block.adds.register_forward_hook(partial(parts.mlp_block, index=index)))
        if view.final_norm is not None:
            hook = partial(parts.final_norm, kind=view.final_norm.kind, eps=view.final_norm.eps)
            undo.enter_context(view.final_norm.module.register_forward_pre_hook(hook))
        logits = view.logits(batch)
    return logits, parts.read(bias)


def _direction(view: ModelView, batch: Batch, explanations: Sequence[str]) -> tuple[Tensor, Tensor]:
    """The directions [B, N, E, D] and constants [B, E] with which explained numbers are read from the residual stream.

    The explained number is the sum over N of (residual · direction) / standard deviation, plus the constant. A
    direction includes the final norm's weight and centring, and the weight of its token in the span; a constant the
    biases of final norm and unembedding. Both are on the batch's device.
    """
    ids = batch.explained_ids[:, None] if batch.span_ids is None else batch.span_ids[..., None]  # [B, N, 2], of spans 1
    rows, constant = view.unembedding_rows(ids.flatten(0, 1))  # [B * N, 2, D]
    rows = wide(rows.to(batch.input_ids.device))
    constant = torch.zeros_like(rows[..., 0]) if constant is None else constant.to(rows)
    if batch.span_weights is not None:
        weights = batch.span_weights.to(rows).flatten()[:, None]
        rows, constant = rows * weights[..., None], constant * weights
    choices = [explained_by(name) for name in explanations]
    explained = torch.stack([choice.of(rows) for choice in choices], 1).unflatten(0, ids.shape[:2])  # [B, N, E, D]
    bias = torch.stack([choice.of(constant) for choice in choices], 1).unflatten(0, ids.shape[:2]).sum(1)  # [B, E]
    norm = view.final_norm
    if norm is None:
        return explained, bias
    weight, shift = norm.parameters()
    if shift is not None:
        bias = bias + (explained @ shift.to(explained)).sum(1)
    explained = explained * weight.to(explained)
    return explained - explained.mean(-1, keepdim=True) if norm.kind == "layer" else explained, bias


class _Parts:
    """Collects contributions during the forward, before they are divided by the final norm's standard deviation."""

    def __init__(self, length: int, position: Tensor, direction: Tensor, n_layers: int, chunk: Chunk) -> None:
        self.direction, self.position, self.chunk = direction, position, chunk
        self.at = torch.arange(len(position), device=direction.device)[:, None]
        self.rollout = Rollout()
        self.deviation = direction.new_ones(position.shape)  # [B, N]
        self.tokens = direction.new_zeros(*direction.shape[:3], length)  # [B, N, E, T]
        self.attended = torch.zeros_like(self.tokens)
        self.layers: list[dict[str, Tensor]] = [{} for _ in range(n_layers)]

    def attention_block(self, layer: Layer) -> None:
        """Add what a block's attention contributes to the explained numbers, moved to the input tokens.

        Before the first block, the residual stream contributes, too. The rollout takes the block's map for the blocks
        after it, so the map of the last block is not made.
        """
        device = layer.residual.device
        direction, position = self.direction.to(device), self.position.to(device)
        if layer.index == 0:
            initial = self._project(layer.residual)
            columns = self.position[..., None, None].expand(*initial.shape, 1)
            self.tokens.scatter_add_(-1, columns, initial[..., None])
            self.layers[0]["initial"] = initial
        pieces = zip(position.split(TOKENS_AT_ONCE, 1), direction.split(TOKENS_AT_ONCE, 1), strict=True)
        parts = [_head_contributions(layer.at(at), some) for at, some in pieces]
        sums = {name: torch.cat([part[name] for part in parts], 1) for name in parts[0]}
        to_tokens = sums["attention"]  # [B, N, E, T]
        to_inputs = self.rollout.to_inputs(to_tokens.flatten(1, 2)).view_as(to_tokens).to(self.tokens.device)
        self.tokens += to_inputs
        self.attended += to_inputs
        self.layers[layer.index].update({name: value.to(self.tokens.device) for name, value in sums.items()})
        if layer.index + 1 < len(self.layers):
            self.rollout.multiply(pre_norm_map(layer, self.chunk))

    def mlp_block(self, _: nn.Module, __: tuple[Tensor, ...], output: Tensor, index: int) -> None:
        """Forward hook of an MLP: notes what its output adds."""
        self.layers[index]["mlp"] = self._project(output.view(len(self.at), -1, output.shape[-1]))

    def final_norm(self, _: nn.Module, args: tuple[Tensor, ...], kind: str, eps: float) -> None:
        """Pre-hook of the final norm: notes the number by which it divides the state at each readout position."""
        state = self._at_position(args[0]).to(self.tokens)  # [B, N, D]
        variance = state.var(-1, unbiased=False) if kind == "layer" else state.square().mean(-1)
        self.deviation = (variance + eps).sqrt()

    def read(self, bias: Tensor) -> LogitContributions:
        """All contributions, divided by the final norm's standard deviation; `bias` [B, E] is the constant part."""
        stacked = {name: self._stack(name) for name in ("attention", "heads", "pooled", "mlp", "attention_bias")}
        tokens, attended = self._scaled(self.tokens), self._scaled(self.attended)
        initial = self._scaled(self.layers[0]["initial"])
        return LogitContributions(tokens=tokens, attended=attended, initial=initial, bias=bias, **stacked)

    def _project(self, states: Tensor) -> Tensor:
        """The states [B, T, D] at the readout positions, multiplied with the directions: [B, N, E]."""
        row = self._at_position(states).to(self.direction)
        return torch.einsum("bnd,bned->bne", row, self.direction)

    def _at_position(self, states: Tensor) -> Tensor:
        """The states [B, T, D] at the readout positions, [B, N, D]."""
        return states[self.at.to(states.device), self.position.to(states.device)]

    def _stack(self, name: str) -> Tensor:
        """The contributions of that name in all layers, [B, E, L, ...]."""
        return torch.stack([self._scaled(layer[name]) for layer in self.layers], 2)

    def _scaled(self, x: Tensor) -> Tensor:
        """Sums over N of contributions [B, N, E, ...] divided by the final norm's standard deviation, [B, E, ...]."""
        return (x / self.deviation.view(*self.deviation.shape, *[1] * (x.dim() - 2))).sum(1)


def _head_contributions(row: Layer, direction: Tensor) -> dict[str, Tensor]:
    """The contributions of the attention of N destinations along directions [B, N, E, D].

    Returns the fields `attention` ([B, N, E, T]), `heads`, `pooled` and `attention_bias` of this layer.
    """
    weights = row.weights()  # [B, H, Tj, N]
    output, (_, bias) = output_weights(row), row.block.output_weights()
    reading = torch.einsum("hkd,bned->bnehk", output, direction)  # [B, N, E, H, K]
    values = row.values()
    by_head = torch.einsum("bhjk,bnehk->bnehj", values, reading) * weights.permute(0, 3, 1, 2).unsqueeze(2)
    entries = torch.einsum("bhjk,bhjn->bnhk", values, weights).unsqueeze(2) * reading  # [B, N, E, H, K]
    shape = entries.shape[:3]
    pooled = pool(entries.flatten(0, 2).unsqueeze(1)).unflatten(0, shape)
    of_bias = direction.new_zeros(shape) if bias is None else direction @ bias.to(direction)
    return {"attention": by_head.sum(3), "heads": by_head.sum(-1), "pooled": pooled, "attention_bias": of_bias}
