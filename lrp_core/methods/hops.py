"""Relevance of a prompt for an answer that follows written reasoning, carried through it in hops (FlashTrace).

The relevance that reasoning tokens get for the answer is explained in turn: as relevance of the prompt and of earlier
reasoning. Every hop's relevance is clamped at 0 and normalised to a sum of 1, so no sum is conserved; `Hops.discarded`
says how much clamping removes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Hops:
    """Relevance of a prompt's tokens by hops, and the shares that are lost or left."""

    prompt: Tensor  # [P] float64, at least 0; its sum and `left` add up to 1
    discarded: tuple[float, ...]  # the share of absolute relevance that clamping removes, for the answer and each hop
    left: float  # the share that is still on reasoning tokens after the last hop


def hopped(
    explain: Callable[[Tensor], Tensor],
    answer: Tensor,
    prompt: Tensor,
    reasoning: Tensor,
    read_as: Tensor,
    hops: int,
) -> Hops:
    """The prompt's relevance: R_0 + sum over hops h of rho_h R_h, each R clamped at 0 and normalised to a sum of 1.

    The model writes n tokens, of which the m with indices `reasoning` [m] are reasoning. `explain(weights)` gives the
    relevance [T] of the model's input for the written tokens, weighted by `weights` [n]. It is called with the weights
    `answer` [n] first, and in each hop with the relevance that the reasoning tokens got before. `prompt` [P] and
    `read_as` [m] are the positions of prompt and reasoning in the input; the rest (later written tokens) is left out.
    rho_0 is 1, and rho_{h+1} is rho_h times the reasoning's share of R_h.
    """
    weights, rho = answer.double(), 1.0
    total = torch.zeros(len(prompt), dtype=torch.float64)
    discarded = []
    for _ in range(hops + 1):
        relevance = explain(weights).double().cpu()
        both = relevance[torch.cat([prompt, read_as])]
        kept = both.clamp_min(0)
        magnitude, mass = float(both.abs().sum()), float(kept.sum())
        discarded.append(1 - mass / magnitude if magnitude else 0.0)
        if not mass:
            break
        shares = kept / mass
        total = total + rho * shares[: len(prompt)]
        of_reasoning = shares[len(prompt) :]
        rho *= float(of_reasoning.sum())
        if not rho:
            break
        weights = torch.zeros_like(weights).scatter(0, reasoning, of_reasoning)
    return Hops(total, tuple(discarded), rho)
