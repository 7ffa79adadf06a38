"""A tiny model of every family under both ways of computing attention, and samples of several lengths for it."""

import pytest

from closelook.lrp_core import ModelView
from tests.tiny import ragged_rows, tiny_model


@pytest.fixture(params=["sdpa", "eager"])
def view(family, request) -> ModelView:
    return tiny_model(family, attn=request.param)


@pytest.fixture
def rows(view) -> list[dict]:
    return ragged_rows(view)
