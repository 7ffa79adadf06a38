"""Measures the peak of the memory that tensors hold in a computation.

On a GPU the allocator counts it. On a CPU a dispatch mode follows every storage that an operation returns until it is
freed; memory that an operation takes and frees inside itself is not seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

#: Parts of messages of allocators, libraries and drivers that raise plain RuntimeErrors.
_OUT_OF_MEMORY = ("DefaultCPUAllocator", "_STATUS_ALLOC_FAILED", "error: out of memory")
_LOST = ("CUDA error", "CUBLAS_STATUS", "cuBLAS", "CUDNN_STATUS", "cuDNN error", "HIP error")


@dataclass
class PeakBytes:
    """Bytes above those at the start of a measurement, now and at their peak; final when its context has ended."""

    live_bytes: int = 0
    peak_bytes: int = 0


@contextmanager
def peak_memory(device: torch.device | str = "cpu") -> Iterator[PeakBytes]:
    """Inside, measure the most bytes that new tensors hold at once: live storages on a CPU, allocated bytes on a GPU.

    Yields the PeakBytes. On a GPU the allocator's peak statistics are reset.
    """
    device = torch.device(device)
    peak = PeakBytes()
    if device.type != "cuda":
        with _StorageMeter(peak):
            yield peak
        return
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    try:
        yield peak
    finally:
        torch.cuda.synchronize(device)
        peak.live_bytes = torch.cuda.memory_allocated(device) - before
        peak.peak_bytes = torch.cuda.max_memory_allocated(device) - before


class _StorageMeter(TorchDispatchMode):
    """Adds the bytes of each new storage when an operation returns it, and subtracts them when it is freed."""

    def __init__(self, peak: PeakBytes) -> None:
        super().__init__()
        self.peak = peak
        self.seen: dict[int, weakref.ref[Any]] = {}  # by the identity of the storage

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        for leaf in (result,) if isinstance(result, Tensor) else tree_iter(result):
            if isinstance(leaf, Tensor) and leaf.device.type != "meta":
                storage = leaf.untyped_storage()
                if id(storage) not in self.seen and not _is_among(storage, (args, kwargs)):
                    self._count(storage)
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        """Add a storage, and subtract it again when it is freed."""
        key, size = id(storage), storage.nbytes()

        def freed(_: Any) -> None:
            del self.seen[key]
            self.peak.live_bytes -= size

        self.seen[key] = weakref.ref(storage, freed)
        self.peak.live_bytes += size
        self.peak.peak_bytes = max(self.peak.peak_bytes, self.peak.live_bytes)


def _is_among(storage: torch.UntypedStorage, inputs: Any) -> bool:
    """True if `storage` is that of one of an operation's `inputs`, so that its result is a view of the input."""
    return any(leaf.untyped_storage() is storage for leaf in tree_iter(inputs) if isinstance(leaf, Tensor))


def is_out_of_memory(error: BaseException) -> bool:
    """True if an error says that memory ran out, on the device or the CPU."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _OUT_OF_MEMORY)


def is_device_lost(error: BaseException) -> bool:
    """True if an error may have broken the GPU's context, so that all later calls of this process would fail."""
    if is_out_of_memory(error):
        return False
    lost = isinstance(error, RuntimeError) and any(sign in str(error) for sign in _LOST)
    return lost or isinstance(error, torch.AcceleratorError)
