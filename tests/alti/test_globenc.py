"""GlobEnc against the oracle that has every vector."""

import pytest
import torch

from closelook.alti import METHODS
from closelook.lrp_core import Batch, UnsupportedMethod
from closelook.lrp_core.opening.model import view_of
from tests.oracles import vectors as oracles
from tests.tiny import ragged_rows, tiny_classifier, tiny_model

pytestmark = pytest.mark.numeric


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("tiny", [tiny_model, tiny_classifier])
def test_globenc_equals_the_oracle(tiny, side):
    view = tiny("bert", num_hidden_layers=3)
    rows = ragged_rows(view)
    relevance = METHODS["globenc"](view, Batch.collate(rows, 0, side), layers=True)
    for i, row in enumerate(rows):
        maps, length, position = oracles.globenc(view, row), len(row["input_ids"]), row["position"]
        real = slice(-length, None) if side == "left" else slice(0, length)
        expected = torch.linalg.multi_dot(maps[::-1])[position]
        torch.testing.assert_close(relevance.tokens[i, real], expected, rtol=0, atol=1e-10)
        for layer, of_layer in enumerate(maps):
            torch.testing.assert_close(relevance.layers[i, layer, real], of_layer[position], rtol=0, atol=1e-10)
        assert abs(float(relevance.tokens[i].sum()) - 1) < 1e-10


@pytest.mark.parametrize("side", ["left", "right"])
def test_globenc_multiplies_norms_as_they_are_where_rows_are_not_normalised(side):
    view = tiny_model("bert", num_hidden_layers=3)
    rows = ragged_rows(view)
    relevance = METHODS["globenc"](view, Batch.collate(rows, 0, side), normalise=False, layers=True)
    for i, row in enumerate(rows):
        maps, length, position = oracles.globenc(view, row, normalise=False), len(row["input_ids"]), row["position"]
        real = slice(-length, None) if side == "left" else slice(0, length)
        expected = torch.linalg.multi_dot(maps[::-1])[position]
        torch.testing.assert_close(relevance.tokens[i, real], expected, rtol=1e-9, atol=0)
        for layer, of_layer in enumerate(maps):
            torch.testing.assert_close(relevance.layers[i, layer, real], of_layer[position], rtol=1e-9, atol=0)


@pytest.mark.parametrize("family", ["distilbert", "electra", "roberta"])
def test_maps_of_raw_norms_are_those_of_normalised_rows_but_for_a_factor_a_row(family):
    view = tiny_model(family)
    batch = Batch.collate(ragged_rows(view), 0)
    raw, normalised = (METHODS["globenc"](view, batch, normalise=on, layers=True).layers for on in (False, True))
    torch.testing.assert_close(raw / raw.sum(-1, keepdim=True), normalised)
    assert (raw.sum(-1) - 1).abs().min() > 1e-3


def test_globenc_is_refused_by_name_for_models_that_normalise_before():
    view = tiny_model("gpt2")
    with pytest.raises(UnsupportedMethod, match=r"globenc needs blocks that normalise after the sum .* use alti_logit"):
        METHODS["globenc"](view, Batch.collate(ragged_rows(view), 0))


def test_globenc_keeps_its_digits_in_float32():
    exact, single = tiny_model("bert"), tiny_model("bert", dtype="float32")
    batch = Batch.collate(ragged_rows(exact), 0)
    expected, relevance = (METHODS["globenc"](view, batch).tokens for view in (exact, single))
    torch.testing.assert_close(relevance.double(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("layers_of", ["alti", "globenc"])
def test_layers_are_rows_of_the_layers_own_maps(layers_of):
    view = tiny_model("roberta")
    batch = Batch.collate(ragged_rows(view), 0)
    whole, first = (METHODS[layers_of](v, batch, layers=True).layers for v in (view, _first_layer_of(view)))
    torch.testing.assert_close(whole[:, :1], first)


def _first_layer_of(view):
    """The same model without its second layer."""
    shallow = tiny_model("roberta")
    shallow.model.load_state_dict(view.model.state_dict())
    shallow.model.config.num_hidden_layers = 1
    del shallow.model.roberta.encoder.layer[1]
    return view_of(shallow.model)
