"""The last steps to logits, as modules, so that rules find them."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Readout(nn.Module):
    """The product of the unembedding, as a module, so that rules find it."""

    def forward(self, state: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """[B, C] of states [B, D] by `weight` [C, D]; or [B, C, ...] of [B, ..., D], each by a weight of [B, C, D]."""
        if weight.dim() == 2:
            logits = state @ weight.T
            return logits if bias is None else logits + bias
        logits = torch.einsum("b...d,bcd->bc...", state, weight)
        return logits if bias is None else logits + bias.view(*bias.shape, *(1,) * (logits.dim() - 2))


class SoftCap(nn.Module):
    """cap * tanh(z / cap), elementwise: z where it is small, never beyond the cap (Gemma 2)."""

    def __init__(self, cap: float) -> None:
        super().__init__()
        self.cap = cap

    def forward(self, z: Tensor) -> Tensor:
        return torch.tanh(z / self.cap) * self.cap
