"""Rollouts and Grad-CAM, against their formulas."""

import pytest
import torch

from tests import oracles_methods as oracles
from tests.asked import EXPLANATIONS, close, explain
from tests.tiny import ragged_rows, tiny_model

pytestmark = pytest.mark.numeric


@pytest.mark.parametrize("explanation", EXPLANATIONS)
@pytest.mark.parametrize(("threshold", "lowest"), [(1.0, 0.0), (0.8, 0.0), (1.0, 0.5), (0.9, 0.3)])
def test_grad_attention_rollout_equals_the_product_of_maps(view, rows, explanation, threshold, lowest):
    options = {"discard_threshold": threshold, "lowest": lowest}
    relevance = explain("grad_attention_rollout", view, rows, explanation=explanation, **options)
    maps = [oracles.attention_maps(view, row, explanation) for row in rows]
    products = [oracles.grad_attention_rollout(*of_row, threshold, lowest) for of_row in maps]
    close(relevance, [product[row["position"]] for product, row in zip(products, rows, strict=True)])


@pytest.mark.parametrize("itself", ["attended", "zero"])
def test_grad_attention_rollout_can_leave_out_the_explained_token_s_own_identity(view, rows, itself):
    relevance = explain("grad_attention_rollout", view, rows, itself=itself)
    wanted = []
    for row in rows:
        maps, gradients, seen = oracles.attention_maps(view, row, "contrastive")
        product, at = oracles.grad_attention_rollout(maps, gradients, seen), row["position"]
        wanted.append((product - torch.eye(len(product), dtype=product.dtype))[at])
        if itself == "zero":
            wanted[-1][at] = 0
    close(relevance, wanted)


def test_what_attention_brings_the_explained_token_keeps_its_digits_beside_the_identity():
    exact, single = (tiny_model("gpt2", dtype=dtype, attn="eager") for dtype in ("float64", "float32"))
    rows, attended = ragged_rows(exact, (2,)), []
    for view in (exact, single):
        view.model.lm_head.weight.mul_(1e-5)  # gradients, hence relevance, far below the 1 of the identity
        attended.append(explain("grad_attention_rollout", view, rows, itself="attended")[0])
    torch.testing.assert_close(attended[1].double(), attended[0], rtol=1e-3, atol=0)
    assert attended[0].abs().max() < 1e-4


@pytest.mark.parametrize(("threshold", "lowest"), [(0.8, 0.0), (1.0, 0.5), (0.9, 0.3)])
def test_attention_rollout_discards_outliers_as_both_papers_do(view, rows, threshold, lowest):
    relevance = explain("attention_rollout", view, rows, discard_threshold=threshold, lowest=lowest)
    wanted = []
    for row in rows:
        maps, _, seen = oracles.attention_maps(view, row, "target")
        wanted.append(oracles.rollout(maps, seen, threshold, lowest)[row["position"]])
    close(relevance, wanted)


@pytest.mark.parametrize("explanation", EXPLANATIONS)
def test_gradcam_weighs_the_last_map_with_its_mean_gradient(view, rows, explanation):
    relevance = explain("gradcam", view, rows, explanation=explanation)
    for ours, row in zip(relevance, rows, strict=True):
        maps, gradients, _ = oracles.attention_maps(view, row, explanation)
        wanted = oracles.gradcam(maps[-1], gradients[-1], row["position"])
        torch.testing.assert_close(ours, wanted, rtol=1e-5, atol=1e-9)
    assert any(ours.any() for ours in relevance)
