"""DecompX against the oracle that has every vector, and its sum against the model."""

from dataclasses import replace

import pytest
import torch

import closelook.alti.decompx
from closelook.alti import METHODS
from closelook.alti.decompx import _activated
from closelook.lrp_core import Batch, UnsupportedMethod, UserError
from closelook.lrp_core.families import FAMILIES
from tests.oracles import vectors as oracles
from tests.tiny import ragged_rows, tiny_classifier, tiny_model

pytestmark = pytest.mark.numeric
POST_NORM = ["bert", "distilbert", "electra", "roberta"]
EXACT = {"rtol": 0, "atol": 1e-10}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("tiny", [tiny_model, tiny_classifier])
def test_decompx_equals_the_oracle(tiny, side):
    view = tiny("bert", num_hidden_layers=3)
    rows = ragged_rows(view)
    batch = Batch.collate(rows, 0, side)
    for explanation in ("contrastive", "target"):
        relevance = METHODS["decompx"](view, batch, explanation=explanation).tokens
        for i, row in enumerate(rows):
            parts, real = oracles.decompx(view, row), batch.attention_mask[i] == 1
            foil = parts[:, row["foil_id"]] if explanation == "contrastive" else 0
            torch.testing.assert_close(relevance[i, real], parts[:, row["target_id"]] - foil, **EXACT)
            assert not relevance[i, ~real].any()


@pytest.mark.parametrize("name", POST_NORM)
@pytest.mark.parametrize("tiny", [tiny_model, tiny_classifier])
def test_parts_of_decompx_sum_to_the_logit_biases_and_all(name, tiny):
    view = tiny(name, num_hidden_layers=3)
    relevance = METHODS["decompx"](view, Batch.collate(ragged_rows(view), 0))
    assert relevance.explained.abs().min() > 1e-3
    torch.testing.assert_close(relevance.residual, torch.zeros_like(relevance.residual), **EXACT)


def test_gated_mlps_are_refused_by_name():
    view = tiny_model("bert")
    gated = replace(view, family=replace(view.family, gate="intermediate.dense"))
    with pytest.raises(UnsupportedMethod, match="decompx needs feed-forward layers without gates, which bert models"):
        METHODS["decompx"](gated, Batch.collate(ragged_rows(view), 0))


def test_gated_mlps_are_not_planned():
    gated = replace(FAMILIES["bert"], gate="intermediate.dense")
    assert METHODS["decompx"].applies(FAMILIES["bert"].capabilities)
    assert not METHODS["decompx"].applies(gated.capabilities)
    assert METHODS["alti"].applies(gated.capabilities)


def test_decompx_of_a_score_is_the_norm_of_the_last_vectors_or_parts_that_sum_to_it():
    view = tiny_classifier("bert", labels=1)
    rows = ragged_rows(view)
    batch = Batch.collate(rows, 0)
    norms, parts = (METHODS["decompx"](view, batch, score=score) for score in ("norm", "parts"))
    for i, row in enumerate(rows):
        length = len(row["input_ids"])
        expected = oracles.decompx_vectors(view, row)[row["position"]].norm(dim=-1)
        torch.testing.assert_close(norms.tokens[i, :length], expected, **EXACT)
        torch.testing.assert_close(parts.tokens[i, :length], oracles.decompx(view, row)[:, 0], **EXACT)
    assert norms.residual is None
    torch.testing.assert_close(parts.residual, torch.zeros_like(parts.residual), **EXACT)


def test_decompx_keeps_its_digits_in_float32():
    exact, single = tiny_model("bert"), tiny_model("bert", dtype="float32")
    batch = Batch.collate(ragged_rows(exact), 0)
    expected, relevance = (METHODS["decompx"](view, batch).tokens for view in (exact, single))
    torch.testing.assert_close(relevance.double(), expected, rtol=1e-3, atol=1e-4)


def test_the_budget_bounds_what_is_held_and_changes_no_number(monkeypatch):
    view = tiny_model("bert")
    batch = Batch.collate(ragged_rows(view), 0)
    expected = METHODS["decompx"](view, batch).tokens
    with pytest.raises(UserError, match=r"DecompX needs (\d+) bytes for one sample of \d+ tokens") as error:
        METHODS["decompx"](view, replace(batch), byte_budget=1000)
    assert "\n" not in str(error.value)
    monkeypatch.setattr(closelook.alti.decompx, "_HIDDEN", 1)
    torch.testing.assert_close(METHODS["decompx"](view, batch).tokens, expected, **EXACT)


def test_decompx_is_refused_by_name_for_models_that_normalise_before():
    view = tiny_model("llama")
    with pytest.raises(UnsupportedMethod, match=r"decompx needs blocks that normalise after the sum .* use alti_logit"):
        METHODS["decompx"](view, Batch.collate(ragged_rows(view), 0))


@pytest.mark.parametrize(("name", "at_zero"), [("relu", 0.0), ("gelu", 0.5), ("silu", 0.5), ("tanh", 1.0)])
def test_a_sum_of_zero_passes_its_vectors_as_the_activation_does_below_it(name, at_zero):
    vectors = torch.tensor([[5.0], [-5.0]], dtype=torch.float64)
    torch.testing.assert_close(_activated(vectors.clone(), name), at_zero * vectors)


def test_an_activation_that_is_not_0_at_0_is_refused():
    with pytest.raises(UnsupportedMethod, match="sigmoid"):
        _activated(torch.ones(2, 1), "sigmoid")
