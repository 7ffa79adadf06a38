"""Planted methods say what they promise of tokens, whatever the model and the padding, and no config can have them."""

import pytest
import torch

from closelook.jobs.config import RunConfig
from closelook.jobs.config.file import ConfigError
from closelook.jobs.methods import METHODS
from closelook.lrp_core import Batch
from closelook.lrp_core.methods.records import PLANTED
from tests.tiny import picture_rows, ragged_rows, tiny_model

pytestmark = pytest.mark.numeric


def expected(name, ids):
    count = len(ids)
    values = {"position_only": range(1, count + 1), "constant": [1] * count, "frequency": [float(i) for i in ids]}
    relevance = torch.tensor(list(values[name]), dtype=torch.float64)
    return relevance.log1p() if name == "frequency" else relevance


@pytest.mark.thinned(3)
@pytest.mark.parametrize("family", ["bert", "gpt2", "t5"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", PLANTED)
def test_relevance_is_of_positions_ids_or_nothing(family, side, name):
    view = tiny_model(family)
    rows = ragged_rows(view)
    result = PLANTED[name](view, Batch.collate(rows, 0, side))
    alone = METHODS["random"](view, Batch.collate(rows, 0, side))
    torch.testing.assert_close(result.logit_target, alone.logit_target)
    for row, tokens in zip(rows, result.tokens, strict=True):
        count = len(row["input_ids"])
        relevance, padding = (tokens[-count:], tokens[:-count]) if side == "left" else (tokens[:count], tokens[count:])
        torch.testing.assert_close(relevance, expected(name, row["input_ids"]))
        assert not padding.any()


@pytest.mark.parametrize("name", PLANTED)
def test_they_serve_images(name):
    view = tiny_model("vit")
    tokens = PLANTED[name](view, Batch.collate(picture_rows(view), 0)).tokens
    assert tokens.shape == (3, view.max_length)
    torch.testing.assert_close(tokens[0], expected(name, [0] * view.max_length))


@pytest.mark.parametrize("methods", [["constant"], [{"name": "frequency", "method": "lrp"}]])
def test_no_config_can_ask_for_one(methods):
    with pytest.raises(ConfigError, match=r"'(constant|frequency)' is a planted method"):
        RunConfig.load("smoke", overrides=[f"methods={methods}"])


def test_they_are_in_no_other_table():
    assert not set(PLANTED) & set(METHODS)
