"""Relevance of a prompt for an answer whose reasoning stands between the two, followed through the reasoning in hops.

FlashTrace's scheme: what the answer owes the reasoning is explained in turn, by the reasoning's own tokens. Every hop's
relevance is clamped at 0 and brought to a sum of 1, so no sum is conserved; what clamping discards is told.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Hops:
    """Relevance of a prompt's tokens by hops, and what hops leave out."""

    prompt: Tensor  # [P] float64, not negative; with `left` its sum is 1
    discarded: tuple[float, ...]  # of each explanation, the share of its magnitude that clamping took away
    left: float  # the share that is still on the reasoning after the last hop


def hopped(
    explain: Callable[[Tensor], Tensor],
    answer: Tensor,
    prompt: Tensor,
    reasoning: Tensor,
    read_as: Tensor,
    hops: int,
) -> Hops:
    """The prompt's relevance: R_0 + sum over hops h of rho_h R_h, each R clamped and normalised.

    `explain(weights)` gives relevance [T] of all that is read for answer tokens with `weights` [n]; it is first asked
    for those of the explained `answer`, then for the tokens `reasoning` [m] of the answer, weighted by what the hop
    before gave them. `prompt` [P] and `read_as` [m] are where the prompt and the reasoning are in T; all else (later
    tokens of the answer) is left out. rho_0 is 1, and rho_{h+1} is rho_h times the reasoning's share of R_h.
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
