"""Pixels that are replaced: patches against a loop over pixels, single pixels, and what is refused."""

import numpy as np
import pytest
import torch

from closelook.evaluation.benchmark.demo import model_dir
from closelook.lrp_core import Batch, load_model
from closelook.lrp_core.interventions.tokens import pixels_replaced
from closelook.lrp_core.records.types import UserError


@pytest.fixture(scope="module")
def view():
    return load_model(model_dir("vit"), dtype="float64")


@pytest.fixture
def batch():
    values = np.random.default_rng(0).normal(size=(2, 3, 24, 24)).astype(np.float32)
    rows = [{"input_ids": [0] * 37, "position": 0, "target_id": 0, "foil_id": 1, "pixel_values": v} for v in values]
    return Batch.collate(rows, pad_id=0)


def test_a_patch_that_is_gone_takes_its_pixels_with_it_and_no_others(view, batch):
    removed = torch.from_numpy(np.random.default_rng(1).random((2, 37)) < 0.4)
    fill = (0.25, -1.0, 2.0)
    values = pixels_replaced(view, batch, removed, fill).pixel_values
    for sample in range(2):
        for row in range(24):
            for column in range(24):
                gone = removed[sample, 1 + 6 * (row // 4) + column // 4]
                expected = torch.tensor(fill) if gone else batch.pixel_values[sample, :, row, column]
                torch.testing.assert_close(values[sample, :, row, column], expected)


def test_single_pixels_are_replaced_where_the_mask_is_of_pixels(view, batch):
    removed = torch.from_numpy(np.random.default_rng(2).random((2, 24 * 24)) < 0.3)
    values = pixels_replaced(view, batch, removed, (0.0, 0.0, 0.0)).pixel_values
    expected = batch.pixel_values.clone()
    expected.movedim(1, -1)[removed.view(2, 24, 24)] = 0
    torch.testing.assert_close(values, expected)


def test_the_class_token_has_no_pixels(view, batch):
    removed = torch.zeros(2, 37, dtype=torch.bool)
    removed[:, 0] = True
    torch.testing.assert_close(pixels_replaced(view, batch, removed, (9.0, 9.0, 9.0)).pixel_values, batch.pixel_values)


def test_masks_and_fills_that_do_not_fit_are_refused(view, batch):
    with pytest.raises(UserError, match="a mask must have"):
        pixels_replaced(view, batch, torch.zeros(2, 36, dtype=torch.bool), (0.0, 0.0, 0.0))
    with pytest.raises(UserError, match="3 channels needs 3 numbers as fill, not 1"):
        pixels_replaced(view, batch, torch.zeros(2, 37, dtype=torch.bool), (0.0,))
