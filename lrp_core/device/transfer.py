"""Copies between CPU and GPU that wait as little as possible.

Every copy to the CPU waits for the GPU, and so does every copy from memory of the CPU that is not pinned.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def to_device(value: Tensor, device: torch.device | str) -> Tensor:
    """The tensor on a device; a copy from the CPU to a GPU is asynchronous, through pinned memory."""
    if str(device).startswith("cuda") and value.device.type == "cpu":
        return value.pin_memory().to(device, non_blocking=True)
    return value.to(device)


def to_host(values: Sequence[Tensor]) -> list[Tensor]:
    """The tensors on the CPU, with a single copy for all tensors of a device; those on the CPU are not copied."""
    by_device: dict[torch.device, list[int]] = {}
    for at, value in enumerate(values):
        if value.device.type != "cpu":
            by_device.setdefault(value.device, []).append(at)
    copied = list(values)
    for places in by_device.values():
        # the largest dtypes first, so that each tensor begins at a multiple of its item size
        aligned = sorted(places, key=lambda at: -values[at].itemsize)
        copies = _joint_copy([values[at] for at in aligned])
        for at, copy in zip(aligned, copies, strict=True):
            copied[at] = copy
    return copied


def _joint_copy(values: Sequence[Tensor]) -> list[Tensor]:
    """Copies of tensors of one device on the CPU, by one copy of all their bytes."""
    # cloned, since a slice of one number keeps the stride of its origin, which `view(torch.uint8)` refuses
    plain = [value.detach().flatten().clone(memory_format=torch.contiguous_format) for value in values]
    every = [value.view(torch.uint8) for value in plain]
    parts = torch.cat(every).cpu().split([part.numel() for part in every])
    return [part.view(value.dtype).view(value.shape) for part, value in zip(parts, values, strict=True)]
