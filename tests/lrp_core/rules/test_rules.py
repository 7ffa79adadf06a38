"""Rules of linear layers, convolutions and the softmax against loops that follow the equations term by term."""

from functools import partial

import pytest
import torch

from closelook.lrp_core import METHODS, Batch, Request, UserError, attribute
from closelook.lrp_core.methods.gradients import explain_many
from closelook.lrp_core.operations.nodes import Plan
from closelook.lrp_core.places.reading import tap_input
from closelook.lrp_core.rules import ATTNLRP, PLAIN, changed
from closelook.lrp_core.rules.composite import OF_ATTNLRP, OF_LRP, RULES, VIT, Spec, combinations
from closelook.lrp_core.rules.linear import ZPLUS, alpha_beta_rule, gamma_rule
from closelook.lrp_core.rules.linear import _gamma as gamma_by_hand
from closelook.lrp_core.rules.softmax import SOFTMAX_RULES
from tests.oracles import rules as oracles
from tests.oracles import vit as oracles_vit
from tests.tiny import picture_rows, ragged_rows, tiny_model

pytestmark = pytest.mark.numeric
CLOSE = {"rtol": 1e-9, "atol": 1e-11}
LINEAR = {
    "gamma": (0.25, gamma_rule(0.25)),
    "zplus": (0.0, ZPLUS),
    "alpha_beta": (2.0, alpha_beta_rule(2.0)),
}


def layer(seed=0, rows=5, inputs=6, outputs=7, dtype=torch.float64):
    """dy, x, y, weight and bias of a random layer, both signs of everything."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)  # noqa: E731
    x, weight, bias = draw(rows, inputs), draw(outputs, inputs), draw(outputs)
    return draw(rows, outputs), x, x @ weight.T + bias, weight, bias


@pytest.mark.parametrize("name", LINEAR)
@pytest.mark.parametrize("with_bias", [True, False])
def test_linear_rules_follow_their_equations(name, with_bias):
    dy, x, y, weight, bias = layer()
    if not with_bias:
        y, bias = y - bias, torch.zeros_like(bias)
    number, rule = LINEAR[name]
    relevance = x * rule.backward(dy, x, y, weight, bias if with_bias else None)
    for at in range(len(x)):
        expected = oracles.shared(oracles.contributions(x[at], weight, bias), dy[at] * y[at], name, number)
        torch.testing.assert_close(relevance[at], expected, **CLOSE)


@pytest.mark.parametrize("name", LINEAR)
def test_a_rule_takes_weights_of_each_sample(name):
    """As the unembedding has, of which each sample reads its own rows."""
    dy, x, y, weight, bias = layer(rows=3, outputs=9)
    rule, picked = LINEAR[name][1], torch.tensor([[0, 4], [8, 1], [2, 2]])
    gathered = [t.gather(1, picked)[:, None] for t in (dy, y)]
    relevance = rule.backward(gathered[0], x[:, None], gathered[1], weight[picked], bias[picked][:, None])[:, 0]
    for at in range(3):
        alone = (t[at, picked[at]][None] for t in (dy, y))
        gradient, value = alone
        expected = rule.backward(gradient, x[at][None], value, weight[picked[at]], bias[picked[at]])[0]
        torch.testing.assert_close(relevance[at], expected, **CLOSE)


def test_sizes_of_weights_are_those_of_the_layer_that_asks():
    plan = Plan((ATTNLRP,))
    for rows, columns, dtype in (
        (3, 4, torch.float64),
        (2, 3, torch.float64),
        (5, 6, torch.float64),
        (2, 2, torch.float32),
    ):
        weight = torch.randn(rows, columns, dtype=dtype)
        for matrix in (weight, weight.T):
            assert torch.equal(plan.sizes(matrix), matrix.abs())
            assert plan.sizes(matrix).dtype == dtype


def test_gamma_0_is_epsilon():
    dy, x, y, weight, bias = layer()
    torch.testing.assert_close(gamma_by_hand(dy, x, y, weight, bias, gamma=0.0), dy @ weight, **CLOSE)
    assert gamma_rule(0.0).backward is None, "which is the true gradient, at no cost"


def test_gamma_to_infinity_is_zplus_where_outputs_are_positive_and_its_mirror_image_elsewhere():
    dy, x, y, weight, bias = layer()
    relevance = x * gamma_rule(1e12).backward(dy, x, y, weight, bias)
    positive = x * ZPLUS.backward(dy * (y > 0), x, y, weight, bias)
    negative = x * ZPLUS.backward(-dy * (y <= 0), x, -y, -weight, -bias)
    torch.testing.assert_close(relevance, positive + negative, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", LINEAR)
def test_linear_rules_conserve_without_biases(name):
    dy, x, _, weight, _ = layer(inputs=12)
    y = x @ weight.T
    relevance = x * LINEAR[name][1].backward(dy, x, y, weight, None)
    torch.testing.assert_close(relevance.sum(-1), (dy * y).sum(-1), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["zplus", "alpha_beta"])
def test_an_output_without_contributions_of_a_sign_gives_that_sign_nothing(name):
    x, weight = torch.ones(1, 3).double(), torch.tensor([[-1.0, -2.0, -3.0]]).double()
    dy = torch.ones(1, 1).double()
    relevance = x * LINEAR[name][1].backward(dy, x, x @ weight.T, weight, None)
    expected = oracles.shared(
        oracles.contributions(x[0], weight, torch.zeros(1).double()), torch.tensor([-6.0]).double(), name, 2.0
    )
    torch.testing.assert_close(relevance[0], expected, **CLOSE)
    assert relevance.isfinite().all()


def softmax_of(x, ds, rule, hidden=None):
    """Relevance of scores [N, T] under a rule, and of the softmax."""
    s = (x if hidden is None else x.masked_fill(hidden, -torch.inf)).softmax(-1)
    shown = x if hidden is None else x.masked_fill(hidden, 0)
    return shown * SOFTMAX_RULES[rule].backward(ds, shown, s, hidden), ds * s


@pytest.mark.parametrize("rule", ["zplus", "constant", "identity", "distributed_bias"])
def test_softmax_rules_follow_their_equations(rule):
    torch.manual_seed(0)
    x, ds = torch.randn(6, 5).double() * 2, torch.randn(6, 5).double()
    relevance, upper = softmax_of(x, ds, rule)
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if rule in ("identity", "distributed_bias") else CLOSE
    for at in range(len(x)):
        torch.testing.assert_close(relevance[at], oracles.softmax_shared(x[at], upper[at], rule), **tolerance)
    if rule != "constant":
        kept = upper
        if rule == "zplus":  # an output with a negative score has a positive contribution where another has one, too
            kept = upper * ((x > 0) | ((x < 0).sum(-1, keepdim=True) > 1))
            assert (kept != upper).any()
        torch.testing.assert_close(relevance.sum(-1), kept.sum(-1), **tolerance)


@pytest.mark.parametrize("rule", ["zplus", "identity", "distributed_bias"])
def test_softmax_rules_leave_hidden_scores_out(rule):
    torch.manual_seed(0)
    x, ds = torch.randn(4, 6).double(), torch.randn(4, 6).double()
    hidden = torch.zeros(4, 6, dtype=torch.bool)
    hidden[:, 4:] = True
    relevance, _ = softmax_of(x, ds, rule, hidden)
    alone, _ = softmax_of(x[:, :4], ds[:, :4], rule)
    torch.testing.assert_close(relevance[:, :4], alone, **CLOSE)
    assert not relevance[:, 4:].any()


@pytest.mark.parametrize("shift", [0.0, 8.0, 16.0, 40.0])
@pytest.mark.parametrize("sign", [1, -1])
def test_zplus_of_a_peaked_softmax_is_near_double_in_single_precision(shift, sign):
    torch.manual_seed(1)
    x, ds = torch.rand(20, 12).double() * sign - (30 if sign < 0 else 0), torch.randn(20, 12).double()
    x[:, 3] += shift
    exact, upper = softmax_of(x, ds, "zplus")
    rough, _ = softmax_of(x.float(), ds.float(), "zplus")
    torch.testing.assert_close(rough.double(), exact, rtol=2e-3, atol=1e-5 * upper.abs().max().item())
    torch.testing.assert_close(exact.sum(-1), upper.sum(-1), rtol=1e-9, atol=1e-12)


def test_a_score_that_stands_alone_gives_nothing():
    relevance, _ = softmax_of(torch.tensor([[-2.0], [3.0]]), torch.ones(2, 1), "zplus")
    assert relevance.tolist() == [[0.0], [0.0]]


WHOLE = {
    "epsilon": {},
    VIT: {"convolution": ("gamma", 0.25), "linear": ("gamma", 0.05), "softmax": ("zplus", 0)},
    "linear alpha_beta 2, input_projection gamma 0.1, output_projection zplus": {
        "linear": ("alpha_beta", 2.0),
        "input_projection": ("gamma", 0.1),
        "output_projection": ("zplus", 0),
    },
    "convolution zplus, linear zplus, softmax constant": {
        "convolution": ("zplus", 0),
        "linear": ("zplus", 0),
        "softmax": ("constant", 0),
    },
}


@pytest.mark.parametrize("composite", WHOLE)
def test_a_composite_is_relevance_layer_by_layer(composite):
    view = tiny_model("vit", seed=1)
    rows = picture_rows(view, 2)
    relevance = attribute("attnlrp", view, Batch.collate(rows, 0), composite=composite)
    pixels, tokens = oracles_vit.layerwise(view, rows[1], WHOLE[composite])
    torch.testing.assert_close(relevance.tokens[1], tokens.sum(-1), rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(relevance.pixels[1], pixels.sum(0), rtol=1e-6, atol=1e-8)


def test_composites_of_one_method_share_a_forward_and_change_no_number():
    view = tiny_model("vit")
    batch = Batch.collate(picture_rows(view), 0)
    composites = ("epsilon", VIT, "linear gamma 1")
    methods = [METHODS["attnlrp"].configured(composite=composite) for composite in composites]
    requests = [method.bound(Request("attnlrp")) for method in methods]
    together = methods[0].compute(view, batch, requests)
    for composite, request in zip(composites, requests, strict=True):
        alone = attribute("attnlrp", view, batch, composite=composite)
        torch.testing.assert_close(together[request].tokens, alone.tokens, **CLOSE)


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama"])
@pytest.mark.parametrize("explanation", ["contrastive", "log_prob"])
def test_the_unembedding_has_the_rule_of_linear_layers(family, explanation):
    """The gamma rule on the unembedding alone gives the relevance of the state that it reads, term by term."""
    view = tiny_model(family)
    batch = Batch.collate(ragged_rows(view, (4, 4)), 0)
    composite = changed(ATTNLRP, "linear gamma 0.5, norm gradient, activation gradient")
    read = []
    tap = partial(tap_input, read=lambda *both: read.append(both))
    with view.unembedding.register_forward_pre_hook(tap):
        explain_many(view, batch, [Request("attnlrp", explanation)], composite=composite)
    gradient, states = (of_texts[torch.arange(2), batch.position] for of_texts in read[0])
    every_logit = view.all_logits(batch)[:, 0]
    for i in range(2):
        target = torch.nn.functional.one_hot(batch.target_ids[i], view.vocab).double()
        other = (
            torch.nn.functional.one_hot(batch.foil_ids[i], view.vocab).double()
            if explanation == "contrastive"
            else every_logit[i].softmax(-1)
        )
        weight, bias = view.unembedding_rows(torch.arange(view.vocab))
        bias = torch.zeros(view.vocab).double() if bias is None else bias
        z = oracles.contributions(states[i], weight, bias)
        relevances = [oracles.shared(z, upper * every_logit[i], "gamma", 0.5) for upper in (target, -other)]
        torch.testing.assert_close(gradient[i] * states[i], sum(relevances), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama"])
def test_gamma_composites_serve_language_models_too(family):
    view = tiny_model(family)
    for name, parameter in view.model.named_parameters():
        if name.endswith("bias"):
            parameter.zero_()
    batch = Batch.collate(ragged_rows(view), 0)
    relevance = attribute("lrp", view, batch, composite="linear gamma 0.1, output_projection gamma 0.2")
    torch.testing.assert_close(relevance.residual, torch.zeros(3, dtype=torch.float64), atol=1e-10, rtol=0)
    assert not torch.allclose(relevance.tokens, attribute("lrp", view, batch).tokens)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_stays_near_double(dtype):
    exact, half = tiny_model("vit"), tiny_model("vit", dtype=dtype)
    batch = Batch.collate(picture_rows(exact), 0)
    tolerance = 0.1 if dtype == "bfloat16" else 0.02
    for composite, times in (("linear gamma 0.1", 1), (VIT, 3)):  # z+ divides by sums that may nearly vanish
        expected, relevance = (attribute("attnlrp", view, batch, composite=composite) for view in (exact, half))
        assert (relevance.tokens - expected.tokens).norm() / expected.tokens.norm() < times * tolerance


@pytest.mark.parametrize("rival", ["lrp_identity_softmax", "lrp_distributed_bias"])
def test_rivals_explode_and_say_by_how_much(rival):
    """More with every layer (AttnLRP's table 3 and figure 5)."""
    view = tiny_model("gpt2", num_hidden_layers=12)
    batch = Batch.collate(ragged_rows(view), 0)
    ours, theirs = attribute("attnlrp", view, batch), attribute(rival, view, batch)
    assert theirs.tokens.abs().max() > 10 * ours.tokens.abs().max()
    assert theirs.residual.abs().max() > 3 * ours.residual.abs().max()
    assert not theirs.tokens[batch.attention_mask == 0].any()


@pytest.mark.parametrize("family", ["vit", "gpt2", "bert"])
@pytest.mark.parametrize("rival", ["lrp_identity_softmax", "lrp_distributed_bias"])
def test_rivals_differ_from_attnlrp_in_the_softmax_alone(family, rival):
    view = tiny_model(family)
    batch = Batch.collate(picture_rows(view) if family == "vit" else ragged_rows(view), 0)
    rule = rival.removeprefix("lrp_").removesuffix("_softmax")
    relevance = attribute(rival, view, batch)
    same = attribute("attnlrp", view, batch, composite={"softmax": rule})
    torch.testing.assert_close(relevance.tokens, same.tokens, **CLOSE)
    assert not torch.allclose(relevance.tokens, attribute("attnlrp", view, batch).tokens)


@pytest.mark.parametrize("rule", LINEAR)
@pytest.mark.parametrize("logits_bias", ["contribution", "constant"])
def test_the_bias_of_logits_is_a_contribution_or_a_constant(rule, logits_bias):
    view = tiny_model("bert")
    batch = Batch.collate(ragged_rows(view), 0)
    composite = changed(PLAIN, OF_ATTNLRP.read({"linear": rule, "logits_bias": logits_bias}))
    read = []
    tap = partial(tap_input, read=lambda *both: read.append(both))
    with view.unembedding.register_forward_pre_hook(tap):
        explain_many(view, batch, [Request("attnlrp", "target")], composite=composite)
    gradient, states = (of_texts[torch.arange(len(batch)), batch.position] for of_texts in read[0])
    rows, bias = view.unembedding_rows(batch.target_ids[:, None])
    assert bias.abs().min() > 1e-3
    for i in range(len(batch)):
        seen, state = bias[i] if logits_bias == "contribution" else torch.zeros_like(bias[i]), states[i]
        z = oracles.contributions(state, rows[i], seen)
        expected = oracles.shared(z, rows[i] @ state + seen, rule, LINEAR[rule][0])
        torch.testing.assert_close(gradient[i] * state, expected, **CLOSE)


@pytest.mark.parametrize("rule", ["gamma", "zplus", "alpha_beta"])
def test_a_constant_bias_of_logits_changes_no_relevance(rule):
    view = tiny_model("bert")
    batch = Batch.collate(ragged_rows(view), 0)
    composite = {"linear": rule, "logits_bias": "constant"}
    constant, counted = (attribute("attnlrp", view, batch, composite=spec) for spec in (composite, {"linear": rule}))
    view.unembedding.bias.zero_()
    without = attribute("attnlrp", view, batch, composite={"linear": rule})
    torch.testing.assert_close(constant.tokens, without.tokens, **CLOSE)
    assert (counted.tokens - without.tokens).abs().max() > 1e-4
    assert not torch.allclose(constant.explained, without.explained)


def test_a_bias_of_logits_that_is_a_contribution_leaves_the_form_of_composites_as_it_was():
    assert OF_LRP.read({"linear": "gamma", "logits_bias": "contribution"}) == "linear gamma 0.25"
    assert OF_LRP.read({"linear": "gamma", "logits_bias": "constant"}) == "linear gamma 0.25, logits_bias constant"


def test_composites_are_read_and_shown_in_one_form():
    canonical = "convolution gamma 0.25, linear gamma 0.05, softmax zplus"
    assert OF_ATTNLRP.read(VIT) == canonical == OF_ATTNLRP.read(canonical)
    assert OF_ATTNLRP.read({"softmax": "zplus", "linear": {"gamma": 0.05}, "convolution": "gamma"}) == canonical
    assert OF_ATTNLRP.show(canonical) == VIT
    assert OF_LRP.read(VIT) == "convolution gamma 0.25, linear gamma 0.05"
    assert OF_ATTNLRP.read({"linear": "epsilon", "norm": "identity"}) == "epsilon" == str(Spec())
    assert [
        str(spec) for spec in combinations({"linear": ["epsilon", {"gamma": 1}], "softmax": ["zplus", "constant"]})
    ] == [
        "softmax zplus",
        "softmax constant",
        "linear gamma 1, softmax zplus",
        "linear gamma 1, softmax constant",
    ]
    assert METHODS["attnlrp"].configured("other", composite=VIT).label == "AttnLRP (composite=vit)"
    keys = {str(METHODS["attnlrp"].configured(composite=spec).key()) for spec in ("epsilon", VIT, "linear gamma 0.05")}
    assert len(keys) == 3, "what a composite says is in the key of a cell"


WRONG = {
    "no group of layers 'convolutions' .did you mean 'convolution'": {"convolutions": "zplus"},
    "linear has no rule 'gama' .did you mean 'gamma'": {"linear": {"gama": 0.1}},
    "softmax has no rule 'gamma'; there are": {"softmax": "gamma"},
    "linear: the rule gamma needs a finite number, at least 0, not -1$": {"linear": {"gamma": -1}},
    "linear: the rule alpha_beta needs a finite number, at least 1, not '2e0'; YAML": {"linear": {"alpha_beta": "2e0"}},
    "linear: the rule gamma needs a finite number, at least 0, not '1.2.3'": "linear gamma 1.2.3",
    "linear: the rule zplus takes no number: leave out 3": {"linear": {"zplus": 3}},
    "no composite 'vitt' .did you mean 'vit'": "vitt",
    "a composite must be {group of layers: rule}, not 3": 3,
}


@pytest.mark.parametrize("says", WRONG)
def test_a_wrong_composite_is_one_line_with_the_nearest_name(says):
    with pytest.raises(UserError, match=f"attnlrp: option 'composite': {says}") as error:
        METHODS["attnlrp"].configured(composite=WRONG[says])
    assert "\n" not in str(error.value)


def test_lrp_has_no_choice_of_the_softmax():
    with pytest.raises(
        UserError, match="lrp: option 'composite': its rule for softmax cannot be changed: leave softmax out"
    ):
        METHODS["lrp"].configured(composite={"softmax": "zplus"})
    assert set(OF_LRP.groups) == set(RULES) - {"softmax"}
