"""Contributions by the fused GPU kernel, if it runs and agrees with the chunked path, else by the chunked path."""

from __future__ import annotations

import logging
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from closelook.alti import transformed
from closelook.alti.transformed import AttentionParts, Chunk

log = logging.getLogger(__name__)

_TOLERANCE = 1e-4  # relative to the largest contribution; both paths compute in float32


def contributions(parts: AttentionParts, chunk: Chunk) -> Tensor:
    """As `alti.transformed.contributions`, by the fastest way on the device."""
    device = parts.weights.device
    if device.type == "cuda" and parts.weights.dtype == torch.float32 and fused_on(device):
        from closelook.alti import fused

        with torch.cuda.device(device):
            return fused.contributions(parts, chunk)
    return transformed.contributions(parts, chunk)


@cache
def fused_on(device: torch.device) -> bool:
    """True if the fused kernel runs on this GPU and agrees with the chunked path; logs a warning, once, if not."""
    if find_spec("triton") is None:
        log.warning("triton is not installed: ALTI takes the chunked path on %s", device)
        return False
    from closelook.alti import fused

    parts = _sample(device)
    expected = transformed.contributions(parts, Chunk(64, 4096))
    try:
        with torch.cuda.device(device):
            computed = fused.contributions(parts, Chunk(64, 4096))
    except Exception as error:  # compilers and drivers may raise anything, and the chunked path gives the same numbers
        log.warning("the fused ALTI kernel does not run on %s (%r): taking the chunked path", device, error)
        return False
    agrees = bool((computed - expected).abs().max() <= _TOLERANCE * expected.max())
    if not agrees:
        log.warning("the fused ALTI kernel is wrong on %s: taking the chunked path", device)
    return agrees


def _sample(device: torch.device | str) -> AttentionParts:
    """A small random attention block, whose sizes are no multiples of the kernel's tiles."""
    heads, length, width, d_model = 5, 37, 8, 72
    draw = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw).to(device)

    allowed = torch.ones(1, length, length, dtype=torch.bool, device=device).tril_()
    hidden = ~allowed.transpose(1, 2)[:, None]
    weights = normal(2, heads, length, length).masked_fill(hidden, -torch.inf).softmax(-2)
    value, output, residual = normal(2, heads, length, width), normal(heads, width, d_model), normal(2, length, d_model)
    attended = torch.einsum("bhji,bhjk,hkd->bid", weights, value, output)
    return AttentionParts(weights, value, output, residual, residual + attended, allowed, causal=True)
