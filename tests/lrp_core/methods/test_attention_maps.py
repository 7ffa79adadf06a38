"""Rollouts and Grad-CAM, against their formulas."""

import pytest
import torch

from closelook.lrp_core import Batch, attribute
from closelook.lrp_core.records.types import span_row
from tests.asked import EXPLANATIONS, close, explain
from tests.oracles import methods as oracles
from tests.tiny import ragged_rows, tiny_model

pytestmark = pytest.mark.numeric


@pytest.mark.thinned(5)
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
    expected = []
    for row in rows:
        maps, gradients, seen = oracles.attention_maps(view, row, "contrastive")
        product, at = oracles.grad_attention_rollout(maps, gradients, seen), row["position"]
        expected.append((product - torch.eye(len(product), dtype=product.dtype))[at])
        if itself == "zero":
            expected[-1][at] = 0
    close(relevance, expected)


def test_what_attention_brings_the_explained_token_keeps_its_digits_beside_the_identity():
    exact, single = (tiny_model("gpt2", dtype=dtype, attn="eager") for dtype in ("float64", "float32"))
    rows, attended = ragged_rows(exact, (2,)), []
    for view in (exact, single):
        view.model.lm_head.weight.mul_(1e-5)  # gradients, hence relevance, far below the 1 of the identity
        attended.append(explain("grad_attention_rollout", view, rows, itself="attended")[0])
    torch.testing.assert_close(attended[1].double(), attended[0], rtol=1e-3, atol=0)
    assert attended[0].abs().max() < 1e-4


@pytest.mark.thinned(3)
@pytest.mark.parametrize(("threshold", "lowest"), [(0.8, 0.0), (1.0, 0.5), (0.9, 0.3)])
def test_attention_rollout_discards_outliers_as_both_papers_do(view, rows, threshold, lowest):
    relevance = explain("attention_rollout", view, rows, discard_threshold=threshold, lowest=lowest)
    expected = []
    for row in rows:
        maps, _, seen = oracles.attention_maps(view, row, "target")
        expected.append(oracles.rollout(maps, seen, threshold, lowest)[row["position"]])
    close(relevance, expected)


@pytest.mark.parametrize("explanation", EXPLANATIONS)
def test_gradcam_weighs_the_last_map_with_its_mean_gradient(view, rows, explanation):
    relevance = explain("gradcam", view, rows, explanation=explanation)
    for ours, row in zip(relevance, rows, strict=True):
        maps, gradients, _ = oracles.attention_maps(view, row, explanation)
        expected = oracles.gradcam(maps[-1], gradients[-1], row["position"])
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-9)
    assert any(ours.any() for ours in relevance)


def test_attention_share_is_the_mean_row_of_all_layers_and_heads(view, rows):
    relevance = explain("attention_share", view, rows)
    for ours, row in zip(relevance, rows, strict=True):
        maps, _, _ = oracles.attention_maps(view, row, "target")
        close([ours], [torch.stack(list(maps)).flatten(0, -3).mean(0)[row["position"]]])


@pytest.mark.parametrize("family", ["llama", "t5"])
def test_attention_share_of_an_answer_is_the_weighted_mean_over_its_tokens(family):
    view = tiny_model(family, attn="eager")
    prompt, answer, weights = [5, 9, 12, 7, 20], [11, 3, 30], [1.0, 0.0, 3.0]
    if view.kind.decoder:
        decoder_ids = [view.config.decoder_start_token_id, *answer[:-1]]
        row = span_row({"input_ids": prompt, "decoder_input_ids": decoder_ids}, 0, answer, weights)
        inputs = {"input_ids": torch.tensor([prompt]), "decoder_input_ids": torch.tensor([decoder_ids])}
        read = view.model(**inputs, output_attentions=True)
        means = [torch.cat(maps).mean((0, 1)) for maps in (read.cross_attentions, read.decoder_attentions)]
        first = 0
    else:
        row = span_row({"input_ids": [*prompt, *answer[:-1]]}, len(prompt) - 1, answer, weights)
        read = view.model(torch.tensor([row["input_ids"]]), output_attentions=True)
        means, first = [torch.cat(read.attentions).mean((0, 1))], len(prompt) - 1
    result = attribute("attention_share", view, Batch.collate([row], 0))
    shares = [(map_[first] + 3 * map_[first + 2]) / 4 for map_ in means]
    torch.testing.assert_close(result.tokens[0], shares[0])
    if view.kind.decoder:
        torch.testing.assert_close(result.decoder_tokens[0], shares[1])
