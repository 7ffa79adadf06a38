"""The imitation itself: what it refuses, what it counts, and that it computes."""

import pytest
import torch

from closelook.lrp_core.device.transfer import to_host
from tests.second_device.device import NAME, MixedDevices, SecondDeviceTensor, counted_waits, introduce, numbers_of


@pytest.fixture(autouse=True, scope="module")
def _known():
    introduce()


def there(*shape) -> torch.Tensor:
    return torch.arange(float(torch.Size(shape).numel())).view(shape).to(NAME)


MIXED = {
    "sum": lambda x: x + torch.ones(3),
    "product": lambda x: x @ torch.ones(3, 2),
    "into the CPU's": lambda x: torch.ones(2, 3).add_(x),
    "into one number": lambda x: torch.ones(()).add_(x.sum()),
    "stack": lambda x: torch.stack([torch.ones(()), x.sum()]),
    "gather": lambda x: x.gather(1, torch.zeros(2, 1, dtype=torch.int64)),
    "embedding": lambda x: torch.nn.functional.embedding(torch.tensor([1]), x),
    "index of the CPU's": lambda x: torch.ones(9)[x.long()],
    "values of an index": lambda x: x.index_put((torch.tensor([0]),), torch.ones(3)),
}


@pytest.mark.parametrize("operation", MIXED.values(), ids=MIXED)
def test_tensors_of_both_devices_are_refused(operation):
    with pytest.raises(MixedDevices):
        operation(there(2, 3))


WAITS = {
    "item": lambda x: x.sum().item(),
    "bool": lambda x: bool(x.any()),
    "float": lambda x: float(x[0, 0]),
    "tolist": lambda x: x.tolist(),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 2],
    "write by a mask": lambda x: x.index_put_((x > 2,), x.new_zeros(3)),
    "masked_select": lambda x: x.masked_select(x > 2),
    "unique": lambda x: x.unique(),
    "equal": lambda x: torch.equal(x, x),
    "repeat": lambda x: x.repeat_interleave(x[:, 0].long(), 0),
    "copy": lambda x: x.cpu(),
    "copy into": lambda x: torch.zeros(2, 3).copy_(x),
    "from the CPU": lambda x: torch.zeros(3).to(NAME),
    "numbers": lambda x: torch.tensor([1, 2], device=NAME),
    "index from the CPU": lambda x: x[torch.tensor([1])],
}
NO_WAITS = {
    "one number": lambda x: x + torch.tensor(2.0),
    "fill by a mask": lambda x: x.masked_fill_(x > 2, 0).__setitem__(x > 2, 1.0),
    "made there": lambda x: torch.zeros(3, device=NAME) + x.new_ones(3),
    "from pinned memory": lambda x: torch.zeros(3).to(NAME, non_blocking=True),
    "index": lambda x: x[torch.arange(2, device=NAME)],
}


@pytest.mark.parametrize("operation", [*WAITS.values(), *NO_WAITS.values()], ids=[*WAITS, *NO_WAITS])
def test_what_the_host_waits_for_is_counted_once(operation, monkeypatch):
    monkeypatch.setattr("tests.second_device.device._PRODUCT", (__file__,))
    x = there(2, 3)
    with counted_waits() as waits:
        operation(x)
    assert sum(waits.values()) == (operation in WAITS.values()), waits


def test_numbers_and_gradients_are_those_of_the_cpu():
    draw = torch.Generator().manual_seed(0)
    layer, x = torch.nn.Linear(4, 4), torch.randn(2, 3, 4, generator=draw)
    expected = x.clone().requires_grad_()
    layer(expected).tanh().cumsum(1).square_().sum().backward()
    leaf = x.to(NAME).requires_grad_()
    layer.to(NAME)(leaf).tanh().cumsum(1).square_().sum().backward()
    assert isinstance(leaf.grad, SecondDeviceTensor)
    assert torch.equal(numbers_of(leaf.grad), expected.grad)


def test_changes_in_place_are_seen():
    x, row = there(2, 3), there(1, 3)
    view = x[0]
    view += 1
    row.squeeze_(0)
    with_other_data = there(3)
    with_other_data.data = row + 1
    assert x.tolist() == [[1, 2, 3], [3, 4, 5]]
    assert (row.shape, with_other_data.tolist()) == ((3,), [1, 2, 3])
    assert torch.arange(4, device=NAME).shape == (4,)


def test_tensors_of_any_dtype_come_to_the_host_by_one_copy(monkeypatch):
    monkeypatch.setattr("tests.second_device.device._PRODUCT", (__file__,))
    values = [
        torch.tensor(True),
        torch.arange(6).view(2, 3),
        torch.tensor([[1.5, -2.0]], dtype=torch.bfloat16),
        torch.zeros(0, 4),
        torch.arange(6.0, dtype=torch.float64).view(3, 2).T,
        torch.tensor([1.5, torch.nan]),
    ]
    moved = [value.to(NAME) for value in values]
    with counted_waits() as waits:
        copies = to_host([*moved, values[1]])
    assert sum(waits.values()) == 1
    assert copies[-1] is values[1]
    for copy, value in zip(copies, [*values, values[1]], strict=True):
        torch.testing.assert_close(copy, value, rtol=0, atol=0, equal_nan=True)
