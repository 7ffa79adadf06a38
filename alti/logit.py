"""ALTI-Logit (Ferrando et al. 2023; Close Look B.1): a logit as a sum over tokens, MLP blocks and biases.

Everything is linear in the explained logit, so any number of explanations share one forward and its maps.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from alti.layers import Layer, visiting
from alti.maps import Rollout, output_weights, pre_norm_map
from alti.transformed import Chunk
from lrp_core.device.precision import wide
from lrp_core.records.explained import explained_by
from lrp_core.records.types import Batch
from lrp_core.rules.heads import pool
from lrp_core.views.view import ModelView


@dataclass(frozen=True)
class LogitContributions:
    """The addition of each part of the model to the explained number, [B, E, ...] for E explanations, or [B, ...].

    `tokens`, `mlp`, `attention_bias` and `bias` sum to the explained number, to rounding.
    """

    tokens: Tensor  # [B, E, T], attention moved to the input tokens, and `initial` at the predicted position
    attended: Tensor  # [B, E, T], attention moved to the input tokens, alone
    initial: Tensor  # [B, E], the embeddings at the predicted position
    attention: Tensor  # [B, E, L, T], attention blocks by source token, before it is moved to the inputs
    heads: Tensor  # [B, E, L, H], attention blocks by head
    pooled: Tensor  # [B, E, L, H, P], the same, pooled over the entries of the head's output
    mlp: Tensor  # [B, E, L], MLP blocks, their biases included
    attention_bias: Tensor  # [B, E, L], biases of the output projections
    bias: Tensor  # [B, E], of the final norm and the unembedding

    def of(self, explanation: int) -> LogitContributions:
        return LogitContributions(**{name: value[:, explanation] for name, value in vars(self).items()})

    def total(self) -> Tensor:
        """The sum of all parts, [B] of one explanation."""
        return self.tokens.sum(-1) + self.mlp.sum(-1) + self.attention_bias.sum(-1) + self.bias


def decompose(
    view: ModelView, batch: Batch, explanations: Sequence[str], chunk: Chunk
) -> tuple[Tensor, LogitContributions]:
    """Logits [B, 2] of target and foil ([B, 1] without foils), and where each explained number comes from."""
    direction, bias = _direction(view, batch, explanations)
    parts = _Parts(batch, direction, view.n_layers, chunk)
    with ExitStack() as undo:
        undo.enter_context(visiting(view, parts.attention_block))
        for index, block in enumerate(view.blocks):
            undo.enter_context(block.adds.register_forward_hook(partial(parts.mlp_block, index=index)))
        if view.final_norm is not None:
            hook = partial(parts.final_norm, kind=view.final_norm.kind, eps=view.final_norm.eps)
            undo.enter_context(view.final_norm.module.register_forward_pre_hook(hook))
        logits = view.logits(view.hidden(batch), batch)
    return logits, parts.read(bias)


def _direction(view: ModelView, batch: Batch, explanations: Sequence[str]) -> tuple[Tensor, Tensor]:
    """The residual direction [B, E, D] that each explanation reads behind the final norm, linearised up to its standard
    deviation, and the constant [B, E] that norm and unembedding add; both where the batch is."""
    rows, constant = view.unembedding_rows(batch.explained_ids)  # [B, 2, D]
    rows = wide(rows.to(batch.input_ids.device))
    constant = torch.zeros_like(rows[..., 0]) if constant is None else constant.to(rows)
    choices = [explained_by(name) for name in explanations]
    explained = torch.stack([choice.of(rows) for choice in choices], 1)  # [B, E, D]
    bias = torch.stack([choice.of(constant) for choice in choices], 1)  # [B, E]
    norm = view.final_norm
    if norm is None:
        return explained, bias
    weight, shift = norm.parameters()
    if shift is not None:
        bias = bias + explained @ shift.to(explained)
    explained = explained * weight.to(explained)
    return explained - explained.mean(-1, keepdim=True) if norm.kind == "layer" else explained, bias


class _Parts:
    """Contributions as the forward meets them, all still to be divided by the final norm's standard deviation."""

    def __init__(self, batch: Batch, direction: Tensor, n_layers: int, chunk: Chunk) -> None:
        self.direction, self.position, self.chunk, self.n_layers = direction, batch.position, chunk, n_layers
        self.at = torch.arange(len(batch), device=direction.device)
        self.rollout = Rollout()
        self.deviation: Tensor | float = 1.0  # [B, 1]
        self.tokens = direction.new_zeros(*direction.shape[:2], batch.input_ids.shape[1])
        self.attended = torch.zeros_like(self.tokens)
        self.layers: list[dict[str, Tensor]] = [{} for _ in range(n_layers)]

    def attention_block(self, layer: Layer) -> None:
        """Adds the block's contributions and mixes its map into the rollout; nobody reads the last block's map."""
        device = layer.residual.device
        direction, position = self.direction.to(device), self.position.to(device)
        if layer.index == 0:
            initial = self._project(layer.residual)
            self.tokens[self.at, :, self.position] += initial
            self.layers[0]["initial"] = initial
        row = layer.at(position)
        to_tokens, sums = _head_contributions(row, row.weights(), direction)  # [B, E, T]
        to_inputs = self.rollout.to_inputs(to_tokens).to(self.tokens.device)
        self.tokens += to_inputs
        self.attended += to_inputs
        self.layers[layer.index].update({name: value.to(self.tokens.device) for name, value in sums.items()})
        if layer.index + 1 < self.n_layers:
            self.rollout.multiply(pre_norm_map(layer, self.chunk))

    def mlp_block(self, _: nn.Module, __: tuple[Tensor, ...], output: Tensor, index: int) -> None:
        self.layers[index]["mlp"] = self._project(output.view(len(self.at), -1, output.shape[-1]))

    def final_norm(self, _: nn.Module, args: tuple[Tensor, ...], kind: str, eps: float) -> None:
        state = self._at_position(args[0]).to(self.tokens)  # [B, D]
        variance = state.var(-1, unbiased=False, keepdim=True) if kind == "layer" else state.square().mean(-1, True)
        self.deviation = (variance + eps).sqrt()

    def read(self, bias: Tensor) -> LogitContributions:
        stacked = {name: self._stack(name) for name in ("attention", "heads", "pooled", "mlp", "attention_bias")}
        return LogitContributions(
            tokens=self._scaled(self.tokens),
            attended=self._scaled(self.attended),
            initial=self._scaled(self.layers[0]["initial"]),
            bias=bias,
            **stacked,
        )

    def _project(self, states: Tensor) -> Tensor:
        """The states [B, T, D] at the predicted position, projected on the directions, [B, E]."""
        row = self._at_position(states).to(self.direction)
        return torch.einsum("bd,bed->be", row, self.direction)

    def _at_position(self, states: Tensor) -> Tensor:
        return states[self.at.to(states.device), self.position.to(states.device)]

    def _stack(self, name: str) -> Tensor:
        return self._scaled(torch.stack([layer[name] for layer in self.layers], 2))

    def _scaled(self, x: Tensor) -> Tensor:
        if isinstance(self.deviation, float):
            return x / self.deviation
        return x / self.deviation.view(-1, *[1] * (x.dim() - 1))


def _head_contributions(row: Layer, weights: Tensor, direction: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """One destination's attention [B, H, Tj, 1] projected on directions [B, E, D]: by source token [B, E, T], and
    by everything else that is asked for."""
    output, (_, bias) = output_weights(row), row.block.output_weights()
    reading = torch.einsum("hkd,bed->behk", output, direction)  # [B, E, H, K]
    weighted = row.values() * weights  # [B, H, Tj, K]
    by_head = torch.einsum("bhjk,behk->behj", weighted, reading)
    entries = weighted.sum(2).unsqueeze(1) * reading  # [B, E, H, K]
    shape = entries.shape[:2]
    by_source = by_head.sum(2)
    pooled = pool(entries.flatten(0, 1).unsqueeze(1)).unflatten(0, shape)
    of_bias = direction.new_zeros(shape) if bias is None else direction @ bias.to(direction)
    sums = {"attention": by_source, "heads": by_head.sum(-1), "pooled": pooled, "attention_bias": of_bias}
    return by_source, sums
