"""An environment without network and with few threads; fixtures over tiny random models of every family."""

import os

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

from lrp_core import Batch, ModelView
from tests.tiny import TINY, ragged_rows, tiny_model

torch.set_num_threads(1)


@pytest.fixture(params=sorted(TINY))
def family(request) -> str:
    """Every family in turn."""
    return request.param


@pytest.fixture
def view(family) -> ModelView:
    """A tiny float64 model of the family."""
    return tiny_model(family)


@pytest.fixture
def batch(view) -> Batch:
    """Three samples of different lengths, padded on the right."""
    return Batch.collate(ragged_rows(view), pad_id=0)
