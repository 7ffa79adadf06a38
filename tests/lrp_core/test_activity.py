"""The bins of activations' histograms, against a search among their ends."""

import numpy as np
import pytest
import torch

from lrp_core.activity import BINS, BOUNDARIES, bins_of


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_exponents_tell_the_bins_that_a_search_finds(dtype):
    ends = torch.tensor(BOUNDARIES, dtype=dtype)
    beside = [torch.nextafter(ends, torch.full_like(ends, side)) for side in (-torch.inf, torch.inf)]
    least, greatest = torch.finfo(dtype).smallest_normal, torch.finfo(dtype).max
    odd = torch.tensor([0.0, -0.0, least, -least, least / 8, -least / 8, greatest, -greatest], dtype=dtype)
    some = torch.randn(10_000, dtype=dtype, generator=torch.Generator().manual_seed(0)) * 20
    x = torch.cat([ends, *beside, odd, some])
    searched = np.searchsorted(np.array(BOUNDARIES), x.double().numpy(), side="right")
    assert set(searched) == set(range(BINS))
    assert bins_of(x).tolist() == searched.tolist()


def test_what_is_not_finite_has_a_bin_of_its_own():
    assert bins_of(torch.tensor([torch.nan, -torch.nan, torch.inf, -torch.inf])).tolist() == 4 * [BINS]
