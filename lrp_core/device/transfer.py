"""Copies between the host and a device. Each copy to the host, and each from unpinned memory, waits for the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def to_device(value: Tensor, device: torch.device | str) -> Tensor:
    """The tensor on this device; the copy from the CPU to a GPU is asynchronous, from pinned memory.

    What follows on the GPU's current stream comes after it, and torch frees the pinned memory no sooner than it ended.
    """
    if str(device).startswith("cuda") and value.device.type == "cpu":
        return value.pin_memory().to(device, non_blocking=True)
    return value.to(device)


def to_host(values: Sequence[Tensor]) -> list[Tensor]:
    """The tensors on the CPU, copied at once for all of a device; tensors on the CPU are not copied."""
    by_device: dict[torch.device, list[int]] = {}
    for at, value in enumerate(values):
        if value.device.type != "cpu":
            by_device.setdefault(value.device, []).append(at)
    copied = list(values)
    for places in by_device.values():
        aligned = sorted(places, key=lambda at: -values[at].itemsize)  # each begins at a multiple of its numbers' size
        copies = _joint_copy([values[at] for at in aligned])
        for at, copy in zip(aligned, copies, strict=True):
            copied[at] = copy
    return copied


def _joint_copy(values: Sequence[Tensor]) -> list[Tensor]:
    # A copy, since the stride of a single number is whatever it was cut from, which `view` does not take.
    plain = [value.detach().flatten().clone(memory_format=torch.contiguous_format) for value in values]
    every = [value.view(torch.uint8) for value in plain]
    parts = torch.cat(every).cpu().split([part.numel() for part in every])
    return [part.view(value.dtype).view(value.shape) for part, value in zip(parts, values, strict=True)]
