"""Heads are removed row by row, and come back when the scope ends."""

import numpy as np
import pytest
import torch

from closelook.lrp_core import Batch
from closelook.lrp_core.interventions.heads import HeadsLeft, branches, heads_removed
from closelook.lrp_core.operations.forward import logits_at
from closelook.lrp_core.records.variants import tiled
from tests.tiny import ragged_rows

pytestmark = pytest.mark.numeric


def test_the_model_is_whole_again_after_an_error_inside_the_scope(view, batch):
    before = view.all_logits(batch)
    kept = torch.zeros(len(batch), view.n_heads, dtype=view.dtype)
    layers = [HeadsLeft(torch.arange(len(batch)), kept)] * view.n_layers
    with heads_removed(view, layers):
        assert not torch.equal(view.all_logits(batch), before)
    with pytest.raises(RuntimeError, match="boom"), heads_removed(view, layers):
        raise RuntimeError("boom")
    assert torch.equal(view.all_logits(batch), before)


def test_rows_that_share_lower_layers_have_the_numbers_of_rows_that_do_not(view):
    sample = Batch.collate(ragged_rows(view)[:1], 0)
    draw = np.random.default_rng(0).integers(0, 2, (6, view.n_layers, view.n_heads)).astype(np.uint8)
    draw[:3, 0] = draw[0, 0]  # three masks that agree in the first layer
    masks = np.unique(draw.reshape(6, -1), axis=0).reshape(-1, view.n_layers, view.n_heads)
    collected = []
    for shared in (True, False):
        layers = list(branches(view, masks, shared=shared))
        with heads_removed(view, layers):
            collected.append(logits_at(view, tiled(sample, len(masks)), sample)[1])
    assert len(next(branches(view, masks)).parents) < len(masks)
    torch.testing.assert_close(collected[0], collected[1], rtol=1e-12, atol=1e-12)
