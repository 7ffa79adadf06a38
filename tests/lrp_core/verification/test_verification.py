"""Models that closelook explains rightly pass every check; what is broken on purpose fails the check that names it."""

from dataclasses import replace

import pytest
import torch

from closelook.jobs.methods import METHODS, applicable
from closelook.lrp_core import Batch, Method
from closelook.lrp_core.operations import attention, products
from closelook.lrp_core.operations.elementwise import RATIOS
from closelook.lrp_core.operations.marks import DEVIATION, Mark, marked, tensors_in
from closelook.lrp_core.operations.nodes import scaled
from closelook.lrp_core.operations.table import TABLE, spellings
from closelook.lrp_core.records.explained import without_sum
from closelook.lrp_core.records.types import UnsupportedMethod
from closelook.lrp_core.verification.agreement import ORDER, PADDED, STOCK, TOLD
from closelook.lrp_core.verification.derivatives import EMBEDDINGS, composites_to_check, gap_of_derivatives
from closelook.lrp_core.verification.record import Finding, Gap, Verification
from closelook.lrp_core.verification.rules import DERIVATIVE, LAYERS, SUMS, TWINS
from closelook.lrp_core.verification.run import verify_view
from closelook.lrp_core.verification.samples import random_rows
from tests.asked import in_turn
from tests.tiny import T5_RELU, tiny_classifier, tiny_model

pytestmark = pytest.mark.numeric
FEW = {name: METHODS[name] for name in ("lrp", "attnlrp", "attnlrp_explicit", "occlusion", "gradient_x_input")}
ALONE = {"lrp": METHODS["lrp"]}  # where nothing is said of methods
NORMS, ACTIVATIONS = "norms: constant deviation", "activations: identity"
TAKES_ALL, UNIFORM = "products: signal takes all", "products: uniform"
MORE_EXPERTS = {"norm_topk_prob": True, "decoder_sparse_step": 1}
WHOLE = ("all rules of lrp", "all rules of attnlrp")


def failed(verification):
    return {finding.check: finding for finding in verification.findings if finding.state == "fail"}


def inapplicable(verification):
    return {finding.check: finding.detail for finding in verification.findings if finding.state == "not applicable"}


@pytest.mark.thinned(9)
@pytest.mark.parametrize("family", ["llama", "bert", "gpt2"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_every_method_of_a_model_passes(family, dtype):
    verification = verify_view(tiny_model(family, dtype=dtype), METHODS)
    assert verification.passed, failed(verification)
    reasons = inapplicable(verification)
    if dtype == "bfloat16":
        assert set(reasons.values()) == {"in half precision, differences of numbers are rounding: use --dtype float32"}
    else:
        assert not reasons
    applying = {method.name for method in applicable(tiny_model(family).family.capabilities)}
    assert set(verification.costs) == applying
    assert all(cost.peak_bytes > 0 and cost.seconds > 0 for name, cost in verification.costs.items())


@pytest.mark.thinned(3)
@pytest.mark.parametrize("family", ["opt", "gemma2", "mixtral", "deberta-v2", "t5", "bart", "vit"])
def test_families_pass_the_checks_that_apply_to_them(family):
    verification = verify_view(tiny_model(family), {**FEW, "embedding_norm": METHODS["embedding_norm"]})
    assert verification.passed, failed(verification)
    expected = {
        "mixtral": [DERIVATIVE.format(title) for title in (ACTIVATIONS, TAKES_ALL, UNIFORM, *WHOLE)],
        "deberta-v2": [LAYERS, *map(DERIVATIVE.format, (NORMS, ACTIVATIONS, TAKES_ALL, UNIFORM, *WHOLE))],
        "t5": [LAYERS, TWINS],
        "bart": [LAYERS, TWINS],
        "vit": [PADDED],
    }
    assert set(inapplicable(verification)) == set(expected.get(family, []))


@pytest.mark.parametrize(
    ("family", "seed", "changes"),
    [("opt", 7, {}), ("t5", 0, T5_RELU), ("mixtral", 3, {}), ("qwen2_moe", 0, MORE_EXPERTS)],
)
def test_a_step_over_a_kink_or_to_another_expert_is_no_fault_of_a_rule(family, seed, changes):
    view = tiny_model(family, "float32", seed=seed, **changes)
    batch = Batch.collate(random_rows(view)[:1], view.pad_id)
    normed = composites_to_check()[NORMS]
    assert gap_of_derivatives(view, batch, normed, EMBEDDINGS).ratio < 1


@pytest.mark.parametrize(("family", "method"), [("gpt2", "leave_one_out"), ("deberta-v2", "attention_rollout")])
def test_methods_without_relevance_of_the_models_tokens_are_refused(family, method):
    with pytest.raises(UnsupportedMethod, match=method):
        verify_view(tiny_model(family), {method: METHODS[method]})


@pytest.mark.parametrize(("labels", "dtype"), [(3, "float32"), (1, "bfloat16")])
def test_classifiers_and_regressors_pass(labels, dtype):
    verification = verify_view(tiny_classifier("llama", labels, dtype=dtype), FEW)
    assert verification.passed, failed(verification)


def _wrong_norm(monkeypatch):
    right = TABLE[torch.rsqrt]

    def wrong(mode, func, args, kwargs):
        if not any(composite.normalization.constant for composite in mode.plan.composites):
            return right.handler(mode, func, args, kwargs)
        return marked(scaled(func(*args, **kwargs), [0.1], mode.plan), Mark(DEVIATION))

    for func in spellings("rsqrt"):
        monkeypatch.setitem(TABLE, func, replace(right, handler=wrong))


def _wrong_activation(monkeypatch):
    for func in spellings("silu"):
        monkeypatch.setitem(RATIOS, func, lambda z, *_, **__: torch.sigmoid(z) * 1.01)


def _wrong_share(monkeypatch):
    right = products.shares

    def shares(composite, *factors):
        return [1.0] * len(factors) if composite.bilinear.serves_gate else right(composite, *factors)

    monkeypatch.setattr(products, "shares", shares)


def _wrong_attention(monkeypatch):
    monkeypatch.setattr(attention, "_of_weights", lambda composite: 1.0)


WRONG = {
    "norm": (_wrong_norm, [NORMS, *WHOLE]),
    "activation": (_wrong_activation, [ACTIVATIONS, WHOLE[1]]),  # lrp holds gates constant
    "share": (_wrong_share, [UNIFORM, WHOLE[1]]),
    "attention": (_wrong_attention, [TAKES_ALL, WHOLE[0]]),
}


@pytest.mark.parametrize(("rule", "dtype"), in_turn([*WRONG], ["float64", "float32"]))
def test_a_rule_that_is_broken_is_named(rule, dtype, monkeypatch):
    break_rule, titles = WRONG[rule]
    break_rule(monkeypatch)
    checks = failed(verify_view(tiny_model("llama", dtype=dtype), ALONE))
    assert {check for check in checks if "numerical" in check} == {DERIVATIVE.format(title) for title in titles}


def test_the_layer_of_a_broken_rule_and_the_smallest_input_are_told(monkeypatch):
    view = tiny_model("gpt2", num_hidden_layers=3)
    weight, right = view.blocks[1].mlp_norm.module.weight, TABLE[torch.nn.functional.layer_norm]

    def wrong(mode, func, args, kwargs):
        result = right.handler(mode, func, args, kwargs)
        broken = any(tensor.data_ptr() == weight.data_ptr() for tensor in tensors_in((args, kwargs)))
        return scaled(result, [1.5 if broken else 1.0 for _ in mode.plan.composites], mode.plan)

    monkeypatch.setitem(TABLE, torch.nn.functional.layer_norm, replace(right, handler=wrong))
    failures = failed(verify_view(view, {name: FEW[name] for name in ("lrp", "attnlrp")}))
    in_second = "first, from the prediction down, in transformer.h.1 or behind it, for input_ids [37], position 0"
    assert failures[DERIVATIVE.format(NORMS)].detail == in_second
    assert failures[LAYERS].detail.endswith(", layer 1")
    assert failures[SUMS].subject == "lrp"


def test_a_description_that_is_not_the_model_fails_against_the_stock_model():
    view = tiny_model("roberta", num_hidden_layers=1)
    misread = replace(view, family=replace(view.family, positions_after_padding=False))
    finding = failed(verify_view(misread, ALONE))[STOCK]
    assert finding.measured > 1e-3
    assert finding.detail.startswith("first in roberta.embeddings.position_embeddings, for input_ids [")
    assert finding.detail.endswith("], position 0")


def of_neighbours(view, batch, requests):
    """The number of rows in the batch, as relevance."""
    return _told(view, batch, requests, float(len(batch)))


def of_another_token(view, batch, requests):
    return _told(view, replace(batch, target_ids=batch.target_ids + 1), requests, 1.0)


def of_a_leaky_hook(view, batch, requests):
    view.blocks[0].module.register_forward_hook(lambda *_: None)
    return _told(view, batch, requests, 1.0)


def of_a_mark(view, batch, requests):
    """Leaves a mark on the model, which keeps its values."""
    view.model.marked = True
    return _told(view, batch, requests, 1.0)


def of_a_marked_model(view, batch, requests):
    return _told(view, batch, requests, 2.0 if hasattr(view.model, "marked") else 1.0)


def of_a_changed_weight(view, batch, requests):
    view.token_embedding.weight.mul_(1.5)
    return _told(view, batch, requests, 1.0)


def _told(view, batch, requests, value):
    batch = batch.to(view.device)
    with torch.no_grad():
        logits = view.logits(view.hidden(batch), batch)
    return {request: without_sum(batch.attention_mask * value, logits) for request in requests}


def bad(explain):
    names = {"explanations": ("none",), "embeddings": ("none",), "conserves": False}
    return {"lrp": METHODS["lrp"], "bad": Method("bad", version=1, label="Bad", explain=explain, **names)}


def test_a_method_that_sees_its_neighbours_is_named():
    finding = failed(verify_view(tiny_model("bert", num_hidden_layers=1), bad(of_neighbours)))[PADDED]
    assert finding.subject == "bad"
    expected = "in no layer of the forward pass, for input_ids [37], position 0 padded on the right to 10 tokens"
    assert finding.detail == expected


def test_a_method_that_explains_another_logit_is_named():
    assert failed(verify_view(tiny_model("bert", num_hidden_layers=1), bad(of_another_token)))[TOLD].subject == "bad"


def test_a_method_that_leaves_a_hook_is_found():
    assert failed(verify_view(tiny_model("bert", num_hidden_layers=1), bad(of_a_leaky_hook)))[ORDER].subject == (
        "hooks that bert.encoder.layer.0 keeps"
    )


def test_a_method_that_changes_the_model_is_named():
    finding = failed(verify_view(tiny_model("bert", num_hidden_layers=1), bad(of_a_changed_weight)))[ORDER]
    assert finding.subject == "logits after bad"


def test_a_method_after_which_another_gives_other_numbers_is_named():
    methods = {"first": bad(of_a_marked_model)["bad"].configured("first"), "bad": bad(of_a_mark)["bad"]}
    finding = failed(verify_view(tiny_model("bert", num_hidden_layers=1), methods))[ORDER]
    assert (finding.subject, finding.detail) == ("first", "it gives other numbers after bad")


def test_the_model_is_left_as_it_was():
    view = tiny_model("gpt2", dtype="float32")
    before = {name: tensor.clone() for name, tensor in view.model.state_dict().items()}
    verify_view(view, FEW)
    assert all(torch.equal(before[name], tensor) for name, tensor in view.model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in view.model.modules())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_fail(value):
    assert Finding.of("numbers", [Gap("one", 0.1, 0.9), Gap("two", value, 0.9)]).state == "fail"
    assert Finding.of("numbers", [Gap("one", 0.0, 0.0)]).state == "pass"
    assert Finding.of("numbers", [Gap("one", 0.1, 9.5), Gap("two", value, 9.5)]).state == "fail"


def test_a_distance_of_numbers_that_are_rounding_neither_passes_nor_fails():
    rounding = Gap("of rounding", 1.2, 9.5)
    finding = Finding.of("numbers", [rounding])
    assert (finding.state, finding.subject, finding.measured, finding.bound) == (
        "nothing to compare", "of rounding", 1.2, 9.5,
    )  # fmt: skip
    assert Finding.of("numbers", [rounding, Gap("told", 0.1, 0.2)]).subject == "told"
    assert Finding.of("numbers", [rounding, Gap("told", 0.3, 0.2)]).state == "fail"
    assert Finding.of("numbers", [Gap("of rounding", 10, 9.5)]).state == "fail"


def test_relevance_that_the_norm_of_embeddings_cancels_is_nothing_to_compare():
    verification = verify_view(tiny_model("bert", dtype="float32"), {"gradient_x_input": METHODS["gradient_x_input"]})
    states = {finding.check: finding.state for finding in verification.findings}
    assert states[PADDED] == "nothing to compare"
    assert verification.passed


def test_a_record_is_read_as_it_was_written():
    verification = verify_view(tiny_model("gpt2", num_hidden_layers=1), ALONE)
    assert Verification.from_dict(verification.to_dict()) == verification
