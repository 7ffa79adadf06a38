"""Live bytes, the peak of which is what a computation needs.

On a GPU the allocator knows. On a CPU nobody does, so a dispatch mode follows every storage that an operation returns
until it is freed. Memory that an operation takes and gives back inside itself is not seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class PeakBytes:
    """`peak_bytes` above what was live at the start, final once the scope has ended."""

    def __init__(self) -> None:
        self.live_bytes = 0
        self.peak_bytes = 0


@contextmanager
def peak_memory(device: torch.device | str = "cpu") -> Iterator[PeakBytes]:
    """Measures the bytes that tensors created inside hold at most: live storages on a CPU, the allocator's on a GPU.

    The allocator's peak statistics of the GPU are reset on entering.
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
    """Counts each new storage when an operation returns it, and takes it off when its last tensor dies."""

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
        key, size = id(storage), storage.nbytes()

        def freed(_: Any) -> None:
            del self.seen[key]
            self.peak.live_bytes -= size

        self.seen[key] = weakref.ref(storage, freed)
        self.peak.live_bytes += size
        self.peak.peak_bytes = max(self.peak.peak_bytes, self.peak.live_bytes)


def _is_among(storage: torch.UntypedStorage, inputs: Any) -> bool:
    """True if an operation only returned a view of one of its `inputs`."""
    return any(leaf.untyped_storage() is storage for leaf in tree_iter(inputs) if isinstance(leaf, Tensor))


#: What allocators, libraries and drivers say; they have no class of error of their own for it.
_OUT_OF_MEMORY = ("DefaultCPUAllocator", "_STATUS_ALLOC_FAILED", "error: out of memory")
_LOST = ("CUDA error", "CUBLAS_STATUS", "cuBLAS", "CUDNN_STATUS", "cuDNN error", "HIP error")


def is_out_of_memory(error: BaseException) -> bool:
    """True if memory ran out, on the device or host: torch's CPU allocator and some libraries raise RuntimeError."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _OUT_OF_MEMORY)


def is_device_lost(error: BaseException) -> bool:
    """True if the device's context may be broken: every later call of this process would fail, whatever its input."""
    if is_out_of_memory(error):
        return False
    lost = isinstance(error, RuntimeError) and any(sign in str(error) for sign in _LOST)
    return lost or isinstance(error, torch.AcceleratorError)
