"""The last steps to logits as modules, so that rules can put hooks on them."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Readout(nn.Module):
    """The product of hidden states and rows of the unembedding, as a module, so that rules can put hooks on it."""

    def forward(self, state: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Logits [B, C] from states [B, D] and `weight` [C, D]; or [B, C, ...] from [B, ..., D] and weights [B, C, D].

        `bias` is [C] or [B, C].
        """
        if weight.dim() == 2:
            logits = state @ weight.T
            return logits if bias is None else logits + bias
        logits = torch.einsum("b...d,bcd->bc...", state, weight)
        return logits if bias is None else logits + bias.view(*bias.shape, *(1,) * (logits.dim() - 2))


class SoftCap(nn.Module):
    """The soft cap of Gemma 2: cap * tanh(z / cap), about z for small z and never beyond the cap."""

    def __init__(self, cap: float) -> None:
        super().__init__()
        self.cap = cap

    def forward(self, z: Tensor) -> Tensor:
        return torch.tanh(z / self.cap) * self.cap
