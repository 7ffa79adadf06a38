"""Integrated gradients, SmoothGrad and norms of relevance, against their formulas."""

import json
from dataclasses import asdict

import pytest
import torch

from closelook.lrp_core import METHODS, Batch, Request, UnsupportedMethod, UserError
from closelook.lrp_core.methods.path_gradients import Noise
from tests.asked import CLOSE, EXPLANATIONS, close, explain, widths
from tests.oracles import methods as oracles
from tests.tiny import ragged_rows, tiny_model

pytestmark = pytest.mark.numeric


@pytest.mark.thinned(5)
@pytest.mark.parametrize("explanation", EXPLANATIONS)
@pytest.mark.parametrize("rule", ["right", "gauss_legendre"])
def test_integrated_gradients_equal_the_formula(view, rows, rule, explanation):
    relevance = explain("integrated_gradients", view, rows, steps=7, rule=rule, explanation=explanation)
    expected = [
        oracles.integrated_gradients(view, row, explanation, 7, rule, torch.tensor(0.0)).sum(-1) for row in rows
    ]
    close(relevance, expected)


@pytest.mark.thinned(3)
def test_integrated_gradients_start_at_the_pad_token_where_asked(view, rows):
    if view.config.pad_token_id is None:
        with pytest.raises(UserError, match="names no pad token: use baseline 'zero'"):
            explain("integrated_gradients", view, rows, baseline="pad")
        return
    pad = view.token_embedding(torch.tensor(view.config.pad_token_id))
    relevance = explain("integrated_gradients", view, rows, steps=5, baseline="pad", explanation="target")
    close(relevance, [oracles.integrated_gradients(view, row, "target", 5, "right", pad).sum(-1) for row in rows])


@pytest.mark.thinned(3)
def test_integrated_gradients_sum_to_the_difference_from_the_baseline(view, rows):
    """RMSNorm undoes any scaling, so that the path from zero has its whole way in its first thousandth."""
    batch, baseline = Batch.collate(rows, 0), "pad" if view.family.norm == "rms" else "zero"
    relevance = METHODS["integrated_gradients"](view, batch, steps=300, baseline=baseline)
    for i, row in enumerate(rows):
        x = oracles.tokens(view, row)
        start = (
            view.token_embedding(torch.zeros(len(x), dtype=torch.int64)) if baseline == "pad" else torch.zeros_like(x)
        )
        empty = oracles.number(oracles.logits(view, row, start), row, "contrastive")
        torch.testing.assert_close(relevance.baseline[i], empty, **CLOSE)
        torch.testing.assert_close(
            relevance.explained[i], oracles.number(oracles.logits(view, row), row, "contrastive"), **CLOSE
        )
    torch.testing.assert_close(
        relevance.residual, relevance.tokens.sum(-1) - (relevance.explained - relevance.baseline)
    )
    assert (relevance.residual.abs() < 0.02).all()


@pytest.mark.thinned(4)
@pytest.mark.parametrize("name", ["integrated_gradients", "gradient_x_input", "lrp", "attnlrp"])
def test_norms_of_a_tokens_relevance_promise_no_sum(view, rows, name):
    batch = Batch.collate(rows, 0)
    relevance = {how: METHODS[name](view, batch, reduce=how, embedding="partial") for how in ("sum", "l1", "l2")}
    assert relevance["sum"].residual is not None
    assert relevance["l1"].residual is relevance["l2"].residual is None
    real = batch.attention_mask.bool()
    assert (relevance["sum"].tokens.abs() <= relevance["l1"].tokens)[real].all()
    assert (relevance["l2"].tokens < relevance["l1"].tokens)[real].all()
    assert (relevance["l1"].tokens < relevance["l2"].tokens * view.d_model**0.5)[real].all()


@pytest.mark.thinned(3)
@pytest.mark.parametrize("reduce", ["l1", "l2"])
def test_reduced_gradients_are_norms_over_the_embedding(view, rows, reduce):
    relevance = explain("gradient_x_input", view, rows, reduce=reduce, embedding="partial", explanation="target")
    each = [oracles.gradient(view, row, x := oracles.tokens(view, row), "target") * x for row in rows]
    close(relevance, [product.norm(p=int(reduce[1]), dim=-1) for product in each])
    relevance = explain("integrated_gradients", view, rows, steps=3, reduce=reduce, explanation="target")
    each = [oracles.integrated_gradients(view, row, "target", 3, "right", torch.tensor(0.0)) for row in rows]
    close(relevance, [product.norm(p=int(reduce[1]), dim=-1) for product in each])


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", ["gradient_x_input", "gradient_l1"])
def test_the_log_probability_is_explained_by_its_gradient_and_promises_no_sum(view, rows, name):
    relevance = METHODS[name](
        view, Batch.collate(rows, 0), explanation="log_prob", embedding=METHODS[name].embeddings[-1]
    )
    assert relevance.residual is None
    for i, row in enumerate(rows):
        x = oracles.tokens(view, row)
        gradient = oracles.gradient(view, row, x, "log_prob")
        expected = (gradient * x).sum(-1) if name == "gradient_x_input" else gradient.abs().sum(-1)
        torch.testing.assert_close(relevance.tokens[i, : len(x)], expected, **CLOSE)
        number = oracles.number(oracles.logits(view, row), row, "log_prob")
        torch.testing.assert_close(relevance.explained[i], number, **CLOSE)
        assert number < 0


@pytest.mark.thinned(3)
@pytest.mark.parametrize("scale", ["relative", "absolute"])
def test_smoothgrad_equals_the_formula_on_its_own_noise(view, rows, scale):
    batch = Batch.collate(rows, 0)
    noise = Noise(batch, view.visible(batch), view.d_model, seed=3)
    relevance = explain("smoothgrad", view, rows, samples=4, sigma=0.2, scale=scale, seed=3, reduce="l1")
    expected = []
    for i, row in enumerate(rows):
        x = oracles.tokens(view, row)
        sigma = 0.2 * (x.max() - x.min() if scale == "relative" else 1)
        drawn = [sigma * noise(k)[i, : len(x)].double() for k in range(4)]
        expected.append(oracles.smoothgrad(view, row, "contrastive", drawn).abs().sum(-1))
    close(relevance, expected)


def test_smoothgrad_noise_is_normal_and_of_the_sample_alone(view, rows):
    single, three = Batch.collate(rows[:1], 0), Batch.collate(rows, 0, side="left")
    alone = Noise(single, view.visible(single), 500, seed=0)
    together = Noise(three, view.visible(three), 500, seed=0)
    drawn = alone(0)[0]
    assert torch.equal(drawn, together(0)[0, -len(drawn) :])
    assert not torch.equal(drawn, alone(1)[0])
    assert not torch.equal(drawn, Noise(single, view.visible(single), 500, seed=1)(0)[0])
    assert abs(drawn.mean()) < 0.1
    assert abs(drawn.std() - 1) < 0.1


def test_smoothgrad_refuses_sums_that_are_rounding_noise(view, rows):
    if view.family.norm == "rms":
        signed = explain("smoothgrad", view, rows)
        close(signed, explain("smoothgrad", view, rows, reduce="sum"), rtol=0, atol=0)
        return
    sums = [oracles.gradient(view, row, oracles.tokens(view, row), "contrastive").sum(-1) for row in rows]
    assert max(of_row.abs().max() for of_row in sums) < 1e-9
    with pytest.raises(
        UnsupportedMethod, match=r"smoothgrad needs norms that keep the mean .* use reduce 'l1' or 'l2'"
    ):
        explain("smoothgrad", view, rows, reduce="sum")
    close(explain("smoothgrad", view, rows), explain("smoothgrad", view, rows, reduce="l2"), rtol=0, atol=0)


def test_a_request_comes_back_from_json_as_it_went():
    request = METHODS["lrp"].configured(reduce="l1").bound(Request("lrp"))
    assert request.option("reduce", "sum") == "l1"
    assert Request(**json.loads(json.dumps(asdict(request)))) == request


@pytest.mark.parametrize("name", ["attnlrp", "integrated_gradients"])
def test_methods_that_differ_in_what_they_do_with_a_gradient_share_its_pass(name):
    view, plain = tiny_model("gpt2"), METHODS[name]
    batch = Batch.collate(ragged_rows(view), 0)
    other = plain.configured("other", reduce="l2")
    assert plain.group == other.group
    assert plain.pass_name == other.pass_name
    assert plain.key() != other.key()
    both = [method.bound(Request(method.name, "target", "partial")) for method in (plain, other)]
    sizes, _ = widths(view)
    result = plain.compute(view, batch, both)
    together = len(sizes)
    for method, request in zip((plain, other), both, strict=True):
        alone = method(view, batch, explanation="target", embedding="partial")
        torch.testing.assert_close(result[request].tokens, alone.tokens)
    assert len(sizes) == 3 * together
    if name == "attnlrp":
        assert plain.group == METHODS["gradient_l1"].group
