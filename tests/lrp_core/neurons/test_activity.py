"""The bins of activations' histograms, against a search among their ends, and activations that are in none."""

import numpy as np
import pytest
import torch

from closelook.lrp_core.neurons.activity import BINS, BOUNDARIES, Activity, bins_of
from tests.tiny import tiny_model


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


def test_activations_that_are_not_finite_are_counted_and_count_nowhere_else():
    view = tiny_model("gpt2")
    with torch.no_grad():
        view.model.transformer.h[1].mlp.c_fc.bias[3] = torch.nan  # of the last layer: no other is disturbed
    activity = Activity(view, top=2)
    activity.add([[5, 6, 7], [8, 9]], [0, 1])
    for layer in (0, 1):
        of_layer = activity.layer(layer)
        lost = torch.zeros(view.neuron_names.count(layer), dtype=torch.int64)
        lost[3] = 5 * layer
        assert of_layer.not_finite.equal(lost)
        assert of_layer.histogram.sum(1).equal(5 - lost)
        assert of_layer.values.isfinite().all(1).equal(lost == 0)
