"""Kernel SHAP by captum, against Shapley values."""

import sys

import pytest
import torch

from lrp_core import UserError
from tests import oracles_methods as oracles
from tests.asked import close, explain
from tests.tiny import ragged_rows


@pytest.fixture
def rows(view) -> list[dict]:
    return ragged_rows(view)


def test_kernel_shap_finds_shapley_values(view):
    pytest.importorskip("captum", reason="captum is not installed")
    rows = ragged_rows(view, (4, 5))
    relevance = explain("kernel_shap", view, rows, samples=1000)
    wanted = [oracles.shapley(view, row, "contrastive") for row in rows]
    for ours, exact in zip(relevance, wanted, strict=True):
        assert (ours - exact).norm() < 0.1 * exact.norm()
        torch.testing.assert_close(ours.sum(), exact.sum(), rtol=0.01, atol=0.01)


def test_kernel_shap_of_one_token_is_the_whole_difference(view):
    pytest.importorskip("captum", reason="captum is not installed")
    (row,) = rows = ragged_rows(view, (1,))
    close(explain("kernel_shap", view, rows), [oracles.shapley(view, row, "contrastive")])


def test_kernel_shap_draws_from_the_seed_and_leaves_the_generator_alone(view, rows):
    pytest.importorskip("captum", reason="captum is not installed")
    state = torch.random.get_rng_state()
    first, again, other = (explain("kernel_shap", view, rows, samples=12, seed=seed)[2] for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(state, torch.random.get_rng_state())


def test_without_captum_kernel_shap_says_what_to_install(view, rows, monkeypatch):
    monkeypatch.setitem(sys.modules, "captum.attr", None)
    with pytest.raises(UserError, match=r"^kernel_shap needs captum: pip install 'closelook\[captum\]'$"):
        explain("kernel_shap", view, rows)
