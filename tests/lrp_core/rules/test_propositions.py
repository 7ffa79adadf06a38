"""Every proposition of Close Look C and AttnLRP 3.3: modified gradients equal explicit rules, in float64."""

import pytest
import torch
from torch import nn
from transformers.activations import ACT2FN

from closelook.lrp_core.rules import ATTNLRP, LRP, PLAIN, Composite, propagation
from closelook.lrp_core.rules.activation import ACTIVATIONS, activate, activation
from closelook.lrp_core.rules.bilinear import attend_with, share
from closelook.lrp_core.rules.normalization import normalise
from closelook.lrp_core.rules.switch import Switch
from tests.oracles import rules as oracles

pytestmark = pytest.mark.numeric
EPS = 1e-6


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).requires_grad_()


@pytest.fixture(params=["alone", "with the others"], autouse=True)
def company(request, monkeypatch):
    """Rules are written into the graph of one composite, and chosen in the backward pass of several."""
    monkeypatch.setitem(COMPANY, "planned", () if request.param == "alone" else (PLAIN, LRP, ATTNLRP))


COMPANY: dict[str, tuple[Composite, ...]] = {}


def only(composite: Composite) -> Switch:
    """The switch of a graph in which a backward pass follows this composite."""
    return Switch(COMPANY["planned"] or (composite,), composite)


def relevance(output: torch.Tensor, gradient: torch.Tensor, *inputs: torch.Tensor) -> list[torch.Tensor]:
    """Gradient x input of every input, for the gradient of the output."""
    return [d * x for d, x in zip(torch.autograd.grad(output, inputs, gradient), inputs, strict=True)]


def attend(query, key, value, composite):
    """One head of attention [T, K] under a composite's rules."""
    q, k, v = attend_with(query, key, value, only(composite))
    return torch.softmax(q @ k.T * query.shape[-1] ** -0.5, -1) @ v


def gated(gate, signal, composite):
    """SiLU(gate) * signal under a composite's rules."""
    switch = only(composite)
    opened = activate(gate, nn.functional.silu(gate).detach(), activation("silu"), True, switch)
    return share(opened * signal, switch)


def test_close_look_c1_uniform_rule_for_products():
    gate, signal, upper = draw(5), draw(5, seed=1), draw(5, seed=2).detach()
    out = gated(gate, signal, ATTNLRP)
    of_gate, of_signal = relevance(out, upper, gate, signal)
    torch.testing.assert_close(of_gate, 0.5 * upper * out)
    torch.testing.assert_close(of_signal, 0.5 * upper * out)


def test_close_look_c2_linear_epsilon_rule_at_epsilon_zero():
    x, weight, bias, upper = draw(4), draw(3, 4, seed=1), draw(3, seed=2), draw(3, seed=3).detach()
    out = nn.functional.linear(x, weight, bias)
    expected = oracles.linear_epsilon(x.detach(), weight, bias, upper * out.detach())
    torch.testing.assert_close(relevance(out, upper, x)[0], expected)


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_close_look_c3_identity_rule_for_activations(name):
    z, upper = draw(200), draw(200, seed=1).detach()
    y = ACT2FN[name](z)
    out = activate(z, y.detach(), activation(name), False, only(LRP))
    torch.testing.assert_close(relevance(out, upper, z)[0], upper * y, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_plain_activation_gradient_is_the_stock_one(name):
    z, upper = draw(200), draw(200, seed=1).detach()
    y = ACT2FN[name](z)
    ours = activate(z, y.detach(), activation(name), False, only(PLAIN))
    expected = torch.autograd.grad(y, z, upper, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(ours, z, upper), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_activations_give_no_nan_at_zero_and_far_out(name, dtype):
    z = torch.tensor([0.0, -0.0, 1e-7, -1e-7, 40, -40, 3e4, -3e4], dtype=dtype).requires_grad_()
    for composite in (PLAIN, LRP):
        y = ACT2FN[name](z).detach().nan_to_num(posinf=0)  # squares overflow in float16 in the activation itself
        out = activate(z, y, activation(name), False, only(composite))
        assert torch.autograd.grad(out.sum(), z)[0].isfinite().all()


def test_close_look_c4_signal_take_all_for_attention():
    query, key, value, upper = draw(4, 3), draw(4, 3, seed=1), draw(4, 3, seed=2), draw(4, 3, seed=3).detach()
    weights = torch.softmax(query @ key.T * 3**-0.5, -1).detach()
    out = attend(query, key, value, LRP)
    dq, dk, dv = torch.autograd.grad(out, (query, key, value), upper, allow_unused=True, materialize_grads=True)
    assert not dq.any()
    assert not dk.any()
    torch.testing.assert_close(dv, weights.T @ upper)


def test_close_look_c4_signal_take_all_for_gated_mlps():
    gate, signal, upper = draw(5), draw(5, seed=1), draw(5, seed=2).detach()
    out = gated(gate, signal, LRP)
    d_gate, d_signal = torch.autograd.grad(out, (gate, signal), upper, allow_unused=True, materialize_grads=True)
    assert not d_gate.any()
    torch.testing.assert_close(d_signal * signal, upper * out)


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_close_look_c5_and_attnlrp_3_4_norms_are_linear_layers(kind):
    x, weight, bias, upper = draw(6), draw(6, seed=1), draw(6, seed=2), draw(6, seed=3).detach()
    bias = bias if kind == "layer" else torch.zeros_like(bias)
    matrix = oracles.norm_matrix(x.detach(), weight, EPS, centred=kind == "layer")
    y = (matrix @ x + bias).detach()
    out = normalise(x, y, kind, weight.detach(), EPS, only(ATTNLRP))
    expected = oracles.linear_epsilon(x.detach(), matrix, bias, upper * y)
    torch.testing.assert_close(relevance(out, upper, x)[0], expected)


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_plain_norm_gradient_is_the_stock_one(kind):
    x, weight, bias, upper = draw(3, 6), draw(6, seed=1), draw(6, seed=2), draw(3, 6, seed=3).detach()
    stock = (
        nn.functional.layer_norm(x, (6,), weight, bias) if kind == "layer" else nn.functional.rms_norm(x, (6,), weight)
    )
    eps = 1e-5 if kind == "layer" else torch.finfo(torch.float64).eps
    out = normalise(x, stock.detach(), kind, weight.detach(), eps, only(PLAIN))
    torch.testing.assert_close(torch.autograd.grad(out, x, upper), torch.autograd.grad(stock, x, upper))


def test_close_look_c6_and_attnlrp_3_1_softmax_rule_is_gradient_times_input():
    x, upper = draw(5), draw(5, seed=1).detach()
    s = torch.softmax(x, -1)
    expected = oracles.softmax_relevance(x.detach(), upper * s.detach())
    torch.testing.assert_close(relevance(s, upper, x)[0], expected)


def test_attnlrp_3_2_and_3_3_uniform_matrix_products_through_attention():
    query, key, value, upper = draw(4, 3), draw(4, 3, seed=1), draw(4, 3, seed=2), draw(4, 3, seed=3).detach()
    scores = (query @ key.T).detach()
    weights = torch.softmax(scores * 3**-0.5, -1)
    out = attend(query, key, value, ATTNLRP)
    of_weights, of_value = oracles.matmul_relevance(weights, value.detach(), upper * out.detach())
    of_scores = torch.stack(
        [oracles.softmax_relevance(x, r) for x, r in zip(scores * 3**-0.5, of_weights, strict=True)]
    )
    of_query, of_key = oracles.matmul_relevance(query.detach(), key.detach().T, of_scores)
    expected = [of_query, of_key.T, of_value]
    for ours, oracle in zip(relevance(out, upper, query, key, value), expected, strict=True):
        torch.testing.assert_close(ours, oracle)


def test_explicit_rules_equal_the_oracles():
    x, weight, bias, upper = draw(4), draw(3, 4, seed=1).detach(), draw(3, seed=2).detach(), draw(3, seed=3).detach()
    out = propagation.linear_rule(x, weight, bias, epsilon=0.1)
    (relevance,) = torch.autograd.grad(out, x, upper)
    torch.testing.assert_close(relevance, oracles.linear_epsilon(x.detach(), weight, bias, upper, epsilon=0.1))
    a, v, upper = draw(4, 3), draw(3, 2, seed=1), draw(4, 2, seed=2).detach()
    relevance = torch.autograd.grad(propagation.matmul_rule(a, v, 0.0), (a, v), upper)
    for ours, expected in zip(relevance, oracles.matmul_relevance(a.detach(), v.detach(), upper), strict=True):
        torch.testing.assert_close(ours, expected)
    x, upper = draw(5), draw(5, seed=1).detach()
    (relevance,) = torch.autograd.grad(propagation.softmax_rule(x, None), x, upper)
    torch.testing.assert_close(relevance, oracles.softmax_relevance(x.detach(), upper))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_norms_of_constant_rows_give_no_nan(kind, dtype):
    x = torch.zeros(2, 6, dtype=dtype).requires_grad_()
    y = normalise(x, torch.zeros_like(x), kind, torch.ones(6, dtype=dtype), 1e-12, only(ATTNLRP))
    assert torch.autograd.grad(y, x, torch.zeros_like(y))[0].isfinite().all()
