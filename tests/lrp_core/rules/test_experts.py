"""Mixtures of experts: rules of router and experts against the formulas; what no rule covers is refused."""

import pytest
import torch

from closelook.lrp_core import METHODS, Batch, UnsupportedModel
from closelook.lrp_core.methods.gradients import MEASURES
from closelook.lrp_core.places.neurons import NeuronRelevance
from closelook.lrp_core.rules import ATTNLRP, LRP
from closelook.lrp_core.verification.stock import without_biases
from tests.oracles import rules as oracles
from tests.ruled import rules
from tests.tiny import ragged_rows, tiny_model

pytestmark = pytest.mark.numeric
FAMILIES = ["mixtral", "qwen2_moe"]


def gated(x, gate, up, down, relevance, signal_takes_all):
    """(relevance of the neurons [F], relevance of the input x [D]) of a gated MLP, from that of its output."""
    none = lambda weight: torch.zeros(weight.shape[0]).to(weight)  # noqa: E731
    hidden = torch.nn.functional.silu(gate @ x) * (up @ x)
    of_hidden = oracles.linear_epsilon(hidden, down, none(down), relevance)
    shares = (0, 1) if signal_takes_all else (0.5, 0.5)
    return of_hidden, sum(
        share * oracles.linear_epsilon(x, weight, none(weight), of_hidden)
        for share, weight in zip(shares, (gate, up), strict=True)
        if share
    )


def mixture(mlp, x, relevance, signal_takes_all):
    """Relevance [D] of one state x [D] from that of what its experts say together, term by term; routing is constant.

    Also that of neurons [F] by the title of the expert.
    """
    router, experts = mlp.gate, mlp.experts
    z = router.weight @ x
    probabilities = torch.exp(z) / torch.exp(z).sum()
    chosen = probabilities.topk(router.top_k).indices.tolist()
    kept = sum(probabilities[e] for e in chosen)
    renormalised = getattr(router, "norm_topk_prob", True)
    parts = []  # weight of an expert, its gate, up and down projections
    for e in chosen:
        gate, up = experts.gate_up_proj[e].chunk(2)
        parts.append((probabilities[e] / (kept if renormalised else 1), gate, up, experts.down_proj[e]))
    shared = getattr(mlp, "shared_expert", None)
    if shared is not None:
        weight = torch.sigmoid(mlp.shared_expert_gate.weight[0] @ x)
        parts.append((weight, shared.gate_proj.weight, shared.up_proj.weight, shared.down_proj.weight))
    outputs = [w * (down @ (torch.nn.functional.silu(gate @ x) * (up @ x))) for w, gate, up, down in parts]
    of_outputs = [output / sum(outputs) * relevance for output in outputs]
    inside = [
        gated(x, gate, up, down, of_output, signal_takes_all)
        for (_, gate, up, down), of_output in zip(parts, of_outputs, strict=True)
    ]
    neurons = dict(zip([*map(str, chosen), "shared"], (of_hidden for of_hidden, _ in inside), strict=False))
    return sum(of_x for _, of_x in inside), neurons


@pytest.mark.thinned(2)
@pytest.mark.parametrize("composite", [ATTNLRP, LRP], ids=["attnlrp", "lrp"])
@pytest.mark.parametrize(
    ("family", "changes"), [("mixtral", {}), ("qwen2_moe", {}), ("qwen2_moe", {"norm_topk_prob": True})]
)
def test_relevance_through_experts_and_their_router_is_that_of_the_formulas(family, changes, composite):
    view = tiny_model(family, **changes)
    mlp = view.blocks[-1].module.mlp
    generator = torch.Generator().manual_seed(0)
    x, relevance = (torch.randn(1, 3, view.d_model, generator=generator, dtype=torch.float64) for _ in range(2))
    batch = Batch(torch.zeros(1, 3, dtype=torch.int64), torch.ones(1, 3), *3 * [torch.zeros(1, dtype=torch.int64)])
    inside = NeuronRelevance(view, batch, [composite])
    with inside.tapping():
        with rules(composite, dtype=torch.float64) as mode:
            leaf = mode.root(x)
            y = mlp(leaf)
        inside.begin({"own": MEASURES["product"]})
        (gradient,) = torch.autograd.grad(y, leaf, relevance / y.detach())
    neurons = torch.zeros(3, view.n_neurons, dtype=torch.float64)
    for t in range(3):
        expected, of_experts = mixture(mlp, x[0, t], relevance[0, t], signal_takes_all=composite is LRP)
        torch.testing.assert_close((x * gradient)[0, t], expected, rtol=1e-9, atol=1e-10)
        for part in view.blocks[-1].feed_forwards:
            if part.title in of_experts:
                neurons[t, part.first : part.first + part.size] = of_experts[part.title]
    result = inside.fields("own", composite, conserves=True)
    torch.testing.assert_close(result["neurons"][0, -1], neurons.sum(0), rtol=1e-9, atol=1e-10)
    at = result["neuron_positions"][0, -1]
    reached = at >= 0
    assert torch.equal(reached, (neurons != 0).any(0))
    largest = neurons[at, torch.arange(view.n_neurons)].abs()
    torch.testing.assert_close(largest[reached], neurons.abs().amax(0)[reached])


@pytest.mark.parametrize("family", FAMILIES)
def test_experts_have_rules_of_linear_layers_unless_they_run_in_one_piece(family):
    view = tiny_model(family)
    batch = Batch.collate(ragged_rows(view), 0)
    composite = {"linear": {"gamma": 0.1}}
    assert not torch.allclose(
        METHODS["lrp"](view, batch).tokens, METHODS["lrp"](view, batch, composite=composite).tokens
    )
    with without_biases(view.model):
        residual = METHODS["lrp"](view, batch, composite=composite).residual
    torch.testing.assert_close(residual, torch.zeros_like(residual), rtol=0, atol=1e-10)
    whole = tiny_model(family, dtype="float32")
    whole.model.set_experts_implementation("grouped_mm")
    with pytest.raises(UnsupportedModel, match="rules of linear layers do not cover experts in one piece"):
        METHODS["lrp"](whole, batch, composite=composite)


@pytest.mark.parametrize("family", FAMILIES)
def test_kernels_of_experts_agree_and_half_precision_is_explained(family):
    wide = tiny_model(family, dtype="float32")
    batch = Batch.collate(ragged_rows(wide), 0)
    wide.model.set_experts_implementation("eager")
    expected = METHODS["attnlrp"](wide, batch).tokens
    wide.model.set_experts_implementation("batched_mm")
    torch.testing.assert_close(METHODS["attnlrp"](wide, batch).tokens, expected, rtol=1e-3, atol=1e-4)
    half = tiny_model(family, dtype="bfloat16")
    for method in ("attnlrp", "attnlrp_explicit", "lrp"):
        assert METHODS[method](half, batch).tokens.isfinite().all()
