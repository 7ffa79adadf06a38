"""The meter of live bytes."""

import pytest
import torch

from closelook.lrp_core.device.memory import is_device_lost, is_out_of_memory, peak_memory


def test_peak_is_what_lives_together_and_views_are_free():
    with peak_memory() as peak:
        a = torch.zeros(1000)
        b = a + 1
        half = b[:500]
        del b
        c = torch.empty(250)
        torch.add(half[:250], 1, out=c)
        del half
        assert peak.live_bytes == 5000
        a.add_(c[0])
    assert peak.peak_bytes == 9000


def test_what_was_there_before_does_not_count():
    before = torch.zeros(1000)
    with peak_memory() as peak:
        before.view(10, 100).add_(1)
    assert peak.peak_bytes == 0


def test_out_of_memory_is_recognised_on_device_and_host():
    with pytest.raises(RuntimeError) as too_much:
        torch.empty(10**15)
    assert is_out_of_memory(too_much.value)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"))
    assert not is_out_of_memory(RuntimeError("shapes cannot be multiplied"))


@pytest.mark.parametrize(
    "error",
    [
        torch.AcceleratorError("device-side assert triggered"),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
    ],
)
def test_a_lost_device_is_told_from_bad_input_and_from_full_memory(error):
    assert is_device_lost(error)
    assert not is_device_lost(
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")
    )
    assert not is_device_lost(torch.AcceleratorError("CUDA error: out of memory"))
    assert not is_device_lost(torch.OutOfMemoryError("CUDA out of memory"))
    assert not is_device_lost(IndexError("index out of range in self"))
