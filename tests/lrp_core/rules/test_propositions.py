"""Every proposition of Close Look C and AttnLRP 3.3: modified gradients equal explicit rules, in float64."""

import pytest
import torch
from torch import nn
from transformers.activations import ACT2FN

from closelook.lrp_core.methods.gradients import explicit_rules
from closelook.lrp_core.rules import ATTNLRP, LRP, PLAIN, Composite
from tests.oracles import rules as oracles
from tests.ruled import rules

pytestmark = pytest.mark.numeric
EPS = 1e-6
ACTIVATIONS = (
    "gelu",
    "gelu_new",
    "gelu_fast",
    "gelu_pytorch_tanh",
    "silu",
    "relu",
    "relu2",
    "tanh",
    "mish",
    "quick_gelu",
)


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(params=["alone", "with the others"], autouse=True)
def company(request, monkeypatch):
    """A graph serves one composite, or several, of which one is chosen in the backward pass."""
    monkeypatch.setitem(COMPANY, "planned", () if request.param == "alone" else (PLAIN, LRP, ATTNLRP))


COMPANY: dict[str, tuple[Composite, ...]] = {}


def gradients(composite: Composite, compute, upper, *inputs: torch.Tensor):
    """The output of `compute(*inputs)` under a composite's rules, and the gradients of the inputs from `upper`."""
    planned = COMPANY["planned"] if composite in COMPANY["planned"] else ()
    with rules(composite, *planned) as mode:
        leaves = [mode.root(x) for x in inputs]
        output = compute(*leaves)
    output = mode.attach(output)
    found = torch.autograd.grad(output, leaves, upper, allow_unused=True, materialize_grads=True)
    return output.detach(), *found


def attend(query, key, value):
    """One head of attention [T, K]."""
    return torch.softmax(query @ key.T * query.shape[-1] ** -0.5, -1) @ value


def gated(gate, signal):
    """SiLU(gate) * signal."""
    return nn.functional.silu(gate) * signal


def test_close_look_c1_uniform_rule_for_products():
    gate, signal, upper = draw(5), draw(5, seed=1), draw(5, seed=2)
    out, of_gate, of_signal = gradients(ATTNLRP, gated, upper, gate, signal)
    torch.testing.assert_close(of_gate * gate, 0.5 * upper * out)
    torch.testing.assert_close(of_signal * signal, 0.5 * upper * out)


def test_close_look_c2_linear_epsilon_rule_at_epsilon_zero():
    x, weight, bias, upper = draw(4), draw(3, 4, seed=1), draw(3, seed=2), draw(3, seed=3)
    out, of_x = gradients(LRP, lambda x: nn.functional.linear(x, weight, bias), upper, x)
    torch.testing.assert_close(of_x * x, oracles.linear_epsilon(x, weight, bias, upper * out))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_close_look_c3_identity_rule_for_activations(name):
    z, upper = draw(200), draw(200, seed=1)
    out, of_z = gradients(LRP, ACT2FN[name], upper, z)
    torch.testing.assert_close(out, ACT2FN[name](z))
    torch.testing.assert_close(of_z * z, upper * out, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_plain_activation_gradient_is_the_stock_one(name):
    z, upper = draw(200), draw(200, seed=1)
    _, ours = gradients(PLAIN, ACT2FN[name], upper, z)
    z.requires_grad_()
    torch.testing.assert_close(ours, *torch.autograd.grad(ACT2FN[name](z), z, upper), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_activations_give_no_nan_at_zero_and_far_out(name, dtype):
    by_powers = name in ("gelu_new", "gelu_fast", "relu2")  # which overflow in the model itself
    far = 30 if dtype == torch.float16 and by_powers else 3e4
    z = torch.tensor([0.0, -0.0, 1e-7, -1e-7, 20, -20, far, -far], dtype=dtype)
    for composite in (PLAIN, LRP):
        _, of_z = gradients(composite, lambda z: ACT2FN[name](z).sum(), torch.ones((), dtype=dtype), z)
        assert of_z.isfinite().all()


def test_close_look_c4_signal_take_all_for_attention():
    query, key, value, upper = draw(4, 3), draw(4, 3, seed=1), draw(4, 3, seed=2), draw(4, 3, seed=3)
    weights = torch.softmax(query @ key.T * 3**-0.5, -1)
    _, dq, dk, dv = gradients(LRP, attend, upper, query, key, value)
    assert not dq.any()
    assert not dk.any()
    torch.testing.assert_close(dv, weights.T @ upper)


def test_close_look_c4_signal_take_all_for_gated_mlps():
    gate, signal, upper = draw(5), draw(5, seed=1), draw(5, seed=2)
    out, d_gate, d_signal = gradients(LRP, gated, upper, gate, signal)
    assert not d_gate.any()
    torch.testing.assert_close(d_signal * signal, upper * out)


def norm(kind, weight, bias, eps):
    """A norm over 6 numbers."""
    if kind == "layer":
        return lambda x: nn.functional.layer_norm(x, (6,), weight, bias, eps)
    return lambda x: nn.functional.rms_norm(x, (6,), weight, eps)


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_close_look_c5_and_attnlrp_3_4_norms_are_linear_layers(kind):
    x, weight, bias, upper = draw(6), draw(6, seed=1), draw(6, seed=2), draw(6, seed=3)
    bias = bias if kind == "layer" else torch.zeros_like(bias)
    matrix = oracles.norm_matrix(x, weight, EPS, centred=kind == "layer")
    out, of_x = gradients(ATTNLRP, norm(kind, weight, bias, EPS), upper, x)
    torch.testing.assert_close(of_x * x, oracles.linear_epsilon(x, matrix, bias, upper * out))


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_plain_norm_gradient_is_the_stock_one(kind):
    x, weight, bias, upper = draw(3, 6), draw(6, seed=1), draw(6, seed=2), draw(3, 6, seed=3)
    compute = norm(kind, weight, bias, EPS)
    _, ours = gradients(PLAIN, compute, upper, x)
    x.requires_grad_()
    torch.testing.assert_close(ours, *torch.autograd.grad(compute(x), x, upper))


def test_close_look_c6_and_attnlrp_3_1_softmax_rule_is_gradient_times_input():
    x, upper = draw(5), draw(5, seed=1)
    s, of_x = gradients(ATTNLRP, lambda x: torch.softmax(x, -1), upper, x)
    torch.testing.assert_close(of_x * x, oracles.softmax_relevance(x, upper * s))


def test_attnlrp_3_2_and_3_3_uniform_matrix_products_through_attention():
    query, key, value, upper = draw(4, 3), draw(4, 3, seed=1), draw(4, 3, seed=2), draw(4, 3, seed=3)
    scores = query @ key.T
    weights = torch.softmax(scores * 3**-0.5, -1)
    out, *found = gradients(ATTNLRP, attend, upper, query, key, value)
    of_weights, of_value = oracles.matmul_relevance(weights, value, upper * out)
    of_scores = torch.stack(
        [oracles.softmax_relevance(x, r) for x, r in zip(scores * 3**-0.5, of_weights, strict=True)]
    )
    of_query, of_key = oracles.matmul_relevance(query, key.T, of_scores)
    expected = [of_query, of_key.T, of_value]
    for gradient, tensor, oracle in zip(found, (query, key, value), expected, strict=True):
        torch.testing.assert_close(gradient * tensor, oracle)


def test_a_stabiliser_is_added_to_the_sums_that_relevance_is_divided_by():
    x, weight, bias, upper = draw(4), draw(3, 4, seed=1), draw(3, seed=2), draw(3, seed=3)
    out, of_x = gradients(explicit_rules(0.1), lambda x: nn.functional.linear(x, weight, bias), upper, x)
    expected = oracles.linear_epsilon(x, weight, bias, upper * out, epsilon=0.1)
    torch.testing.assert_close(of_x * x, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_norms_of_constant_rows_give_no_nan(kind, dtype):
    x, upper = torch.zeros(2, 6, dtype=dtype), torch.zeros(2, 6, dtype=dtype)
    _, of_x = gradients(ATTNLRP, norm(kind, torch.ones(6, dtype=dtype), None, 1e-12), upper, x)
    assert of_x.isfinite().all()
