"""Each rule on an operation, against its slow matrix form in float64 (`tests.oracles.rules`)."""

import pytest
import torch
from torch.nn import functional as F

from closelook.lrp_core.operations.mode import Operations
from closelook.lrp_core.operations.nodes import Plan
from closelook.lrp_core.operations.roots import Roots
from closelook.lrp_core.operations.watching import watched
from closelook.lrp_core.rules import ATTNLRP, LRP, changed
from closelook.lrp_core.rules.composite import Spec
from tests.oracles import rules as slow

GENERATOR = torch.Generator().manual_seed(0)


def drawn(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=GENERATOR)


def with_rules(written):
    return changed(ATTNLRP, str(Spec.of(written)))


def relevance(compute, inputs, upper, composite):
    """Relevance of each of `inputs` from that of `compute(*inputs)`, `upper`, by the rules of a composite."""
    plan, roots = Plan((composite,)), Roots({})
    mode = Operations(plan, roots, torch.nn.Module())
    leaves = [roots._root(x, "input_ids", words=True) for x in inputs]
    for leaf in leaves:
        mode._admit(leaf)
    with mode:
        y = compute(*leaves)
    mode.check(y)
    mode.end([y])
    values = [root.value for root in roots.found]
    gradients = torch.autograd.grad(y, values, upper / y.detach(), allow_unused=True)
    pairs = zip(gradients, values, strict=True)
    return [torch.zeros_like(value) if grad is None else (grad * value).detach() for grad, value in pairs]


def same(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("name", "number"), [("epsilon", 0), ("gamma", 0.25), ("zplus", 0), ("alpha_beta", 2.0), ("alpha_beta", 1.0)]
)
@pytest.mark.parametrize("spelling", ["linear", "addmm", "convolution"])
def test_a_linear_layer_shares_relevance_by_its_groups_rule(spelling, name, number):
    x, weight, bias, upper = drawn(5), drawn(4, 5), drawn(4), drawn(4)
    spec = name if number == 0 else {name: number}
    composite = with_rules({"linear": spec, "convolution": spec})
    layers = {
        "linear": lambda x: F.linear(x, weight, bias),
        "addmm": lambda x: torch.addmm(bias, x[None], weight.mT)[0],
        "convolution": lambda x: F.conv2d(x[None, :, None, None], weight[:, :, None, None], bias)[0, :, 0, 0],
    }
    (found,) = relevance(layers[spelling], [x], upper, composite)
    same(found, slow.shared(slow.contributions(x, weight, bias), upper, name, number))


@pytest.mark.parametrize("name", ["epsilon", "zplus", "constant", "identity", "distributed_bias"])
def test_a_softmax_shares_relevance_by_its_rule(name):
    x, upper = drawn(5), drawn(5)

    def compute(x):
        weights = torch.softmax(x[None], -1)[0]
        return weights if name != "constant" else weights * (1 + 0.0 * x.sum())

    (found,) = relevance(compute, [x], upper, with_rules({"softmax": name}))
    stabiliser = 1e-6 if name in ("identity", "distributed_bias") else 0  # of rules that divide by scores
    tolerance = 1e-10 + 100 * stabiliser
    torch.testing.assert_close(found, slow.softmax_shared(x, upper, name), rtol=tolerance, atol=tolerance)


def test_a_matrix_product_halves_relevance_under_the_uniform_rule():
    a, v, upper = drawn(3, 4), drawn(4, 2), drawn(3, 2)
    of_a, of_v = slow.matmul_relevance(a, v, upper)
    for compute in (
        torch.matmul,
        torch.mm,
        lambda a, v: torch.einsum("ij,jk->ik", a, v),
        lambda a, v: (a[None] @ v)[0],
    ):
        found = relevance(compute, [a, v], upper, ATTNLRP)
        same(found[0], of_a)
        same(found[1], of_v)
    found = relevance(lambda a, v: torch.addmm(torch.zeros(3, 2, dtype=a.dtype), a, v), [a, v], upper, ATTNLRP)
    same(found[0], of_a)


def test_k_factors_get_a_kth_each_under_the_uniform_rule():
    a, b, c, upper = drawn(4), drawn(4), drawn(4), drawn(4)
    for found in relevance(lambda a, b, c: torch.einsum("i,i,i->i", a, b, c), [a, b, c], upper, ATTNLRP):
        same(found, upper / 3)


@pytest.mark.parametrize("order", [1, -1])
def test_the_signal_takes_all_from_what_came_from_an_activation(order):
    a, b, upper = drawn(4), drawn(4), drawn(4)
    for gate in (F.silu, lambda x: F.gelu(x) * 2.0, lambda x: F.silu(x).view(2, 2).flatten().clone()):
        of_gate, of_signal = relevance(lambda a, b, gate=gate: torch.mul(*(gate(a), b)[::order]), [a, b], upper, LRP)
        same(of_gate, torch.zeros(4, dtype=a.dtype))
        same(of_signal, upper)
    of_a, of_b = relevance(lambda a, b: F.silu(a) * F.silu(b), [a, b], upper, LRP)  # several: the uniform rule
    same(of_a, upper / 2)
    same(of_b, upper / 2)


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_a_norm_is_linear_at_its_deviation_in_one_piece_or_by_hand(kind):
    x, weight, upper = drawn(6), drawn(6), drawn(6)
    matrix = slow.norm_matrix(x, weight, 1e-5, kind == "layer")
    expected = slow.linear_epsilon(x, matrix, torch.zeros(6, dtype=x.dtype), upper)

    def by_hand(x):
        if kind == "layer":
            x = x - x.mean(-1, keepdim=True)
        return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))

    def divided(x):
        x = x - x.mean(-1, keepdim=True) if kind == "layer" else x
        return weight * x / ((x * x).mean(-1, keepdim=True) + 1e-5).sqrt()

    def in_one_piece(x):
        norm = F.layer_norm if kind == "layer" else F.rms_norm
        return norm(x, (6,), weight, eps=1e-5)

    for compute in (in_one_piece, by_hand, divided):
        for composite in (LRP, ATTNLRP):
            (found,) = relevance(compute, [x], upper, composite)
            same(found, expected)
        (found,) = relevance(compute, [x], upper, with_rules({"norm": "gradient"}))
        jacobian = torch.autograd.functional.jacobian(compute, x)
        same(found, x * (jacobian.mT @ (upper / compute(x))))


ACTIVATIONS = (F.gelu, F.silu, F.relu, torch.tanh, F.mish, F.hardswish, F.elu, torch.square, F.leaky_relu)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_an_activation_passes_relevance_unchanged_and_is_finite_at_zero(activation):
    x, upper = drawn(5).abs(), drawn(5)
    (found,) = relevance(activation, [x], upper, ATTNLRP)
    same(found, upper)
    (found,) = relevance(lambda x: activation(x) + 1.0 * x.flip(0), [torch.tensor([0.0, 1.0]).double()], upper[:2], LRP)
    assert found.isfinite().all()


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["epsilon", "zplus", "distributed_bias"])
def test_attention_in_one_piece_equals_attention_in_steps(causal, grouped, name):
    query, key, value, mask = (
        drawn(1, 4, 5, 3),
        drawn(1, 2 if grouped else 4, 5, 3),
        drawn(1, 2 if grouped else 4, 5, 3),
        drawn(5, 5),
    )
    upper = drawn(1, 4, 5, 3)

    def in_steps(query, key, value, mask):
        if grouped:
            key, value = key.repeat_interleave(2, 1), value.repeat_interleave(2, 1)
        scores = query @ key.mT * 3**-0.5
        scores = scores.masked_fill(~torch.ones(5, 5).tril().bool(), -1e30) if causal else scores + mask
        return torch.softmax(scores, -1) @ value

    def in_one_piece(query, key, value, mask):
        options = {"is_causal": True} if causal else {"attn_mask": mask}
        return F.scaled_dot_product_attention(query, key, value, enable_gqa=grouped, **options)

    composite = with_rules({"softmax": name})
    for rules in (composite, LRP):
        found = relevance(in_one_piece, [query, key, value, mask], upper, rules)
        for one, expected in zip(found, relevance(in_steps, [query, key, value, mask], upper, rules), strict=True):
            same(one, expected)


LINEAR_MAPS = {
    "Fourier": lambda x: torch.fft.fft(x.view(2, 3), dim=-1).real.flatten(),
    "rotation of complex numbers": lambda x: torch.view_as_real(
        torch.view_as_complex(x.view(3, 2)) * torch.polar(torch.ones(3), torch.arange(3.0)).to(torch.complex128)
    ).flatten(),
    "mixture with constants": lambda x: torch.lerp(x, torch.ones_like(x), 0.25),
    "in the shape and precision of another": lambda x: x.view(2, 3).type_as(x).view_as(x),
}


@pytest.mark.parametrize("name", LINEAR_MAPS)
def test_a_linear_map_shares_relevance_by_its_matrix(name):
    x, upper, compute = drawn(6), drawn(6), LINEAR_MAPS[name]
    matrix = torch.autograd.functional.jacobian(compute, x)
    for composite in (LRP, ATTNLRP):
        (found,) = relevance(compute, [x], upper, composite)
        same(found, x * (matrix.mT @ (upper / compute(x))))


def chosen(scores):
    """1 for the two largest of some scores, else 0: chosen without gradients."""
    with torch.no_grad():
        ranked = (scores.view(1, 5) @ torch.eye(5, dtype=scores.dtype) * 2 + 1).topk(2).indices[0]
        return torch.zeros(5, dtype=scores.dtype).scatter(0, ranked, 1.0)


CONSTANTS = {
    "the share that a sink leaves": lambda a: torch.sigmoid(torch.logsumexp(a.view(1, 5), -1) - 0.5),
    "a logarithm": lambda a: torch.log(1.0 + torch.exp(a)),
    "a product of decays": lambda a: torch.sigmoid(a).cumprod(0),
    "the larger of gates": lambda a: torch.maximum(torch.sigmoid(a), torch.sigmoid(a.flip(0))),
    "experts' weights over their sum": lambda a: torch.sigmoid(a) / torch.sigmoid(a).topk(2).values.sum(),
    "keys chosen without gradients": lambda a: chosen(a) + 0.5,
    "keys chosen from a detached tensor": lambda a: torch.zeros_like(a).scatter(0, a.detach().topk(2).indices, 1.0) + 1,
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_gates_and_choices_are_constants_that_multiply_relevance(name):
    a, b, upper = drawn(5), drawn(5), drawn(5)
    for composite in (LRP, ATTNLRP):
        of_constant, of_signal = relevance(lambda a, b: b * CONSTANTS[name](a), [a, b], upper, composite)
        same(of_signal, upper)
        same(of_constant, torch.zeros_like(a))


def test_an_activation_that_a_hook_watches_has_its_relevance():
    x, upper, seen = drawn(5), drawn(5), []

    def compute(x):
        y = watched(F.silu(x), lambda gradient, y: seen.append(gradient * y))
        return y * 2.0

    (found,) = relevance(compute, [x], upper, ATTNLRP)
    same(found, upper)
    same(seen[0], upper)


def test_an_activation_chosen_by_a_comparison_passes_relevance_unchanged():
    x, upper = drawn(6), drawn(6)
    for compute in (
        lambda x: torch.where(x > 0, x * x + 0.5 * x, torch.expm1(x)),
        lambda x: torch.tanh(x).masked_fill(x.detach() > 9.0, 0.0),
    ):
        (found,) = relevance(compute, [x], upper, ATTNLRP)
        same(found, upper)
