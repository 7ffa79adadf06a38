"""Models that closelook explains rightly pass every check; what is broken on purpose fails the check that names it."""

from dataclasses import replace

import pytest
import torch

from closelook.jobs.methods import METHODS
from closelook.lrp_core import Method
from closelook.lrp_core.operations import attention, forward
from closelook.lrp_core.operations.marks import DEVIATION, Mark, marked
from closelook.lrp_core.operations.nodes import scaled
from closelook.lrp_core.operations.table import TABLE, spellings
from closelook.lrp_core.records.explained import without_sum
from closelook.lrp_core.records.types import UnsupportedMethod
from closelook.lrp_core.verification import run
from closelook.lrp_core.verification.record import Finding, Gap
from closelook.lrp_core.verification.run import DERIVATIVE, PADDED, STOCK, SUMS, TWINS, verify_view
from tests.tiny import tiny_classifier, tiny_model

pytestmark = pytest.mark.numeric
FEW = {name: METHODS[name] for name in ("lrp", "attnlrp", "attnlrp_explicit", "occlusion", "gradient_x_input")}
ALONE = {"lrp": METHODS["lrp"]}  # where nothing is said of methods


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
        assert set(reasons.values()) == {"in half precision, differences are rounding: use --dtype float32"}
    else:
        assert not reasons


@pytest.mark.thinned(3)
@pytest.mark.parametrize("family", ["opt", "gemma2", "mixtral", "deberta-v2", "t5", "bart", "vit"])
def test_families_pass_the_checks_that_apply_to_them(family):
    verification = verify_view(tiny_model(family), {**FEW, "embedding_norm": METHODS["embedding_norm"]})
    assert verification.passed, failed(verification)
    expected = {
        "t5": [TWINS],
        "bart": [TWINS],
        "vit": [PADDED, DERIVATIVE],
    }
    assert set(inapplicable(verification)) == set(expected.get(family, []))


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
        factors = [0.1] * len(mode.plan.composites)
        return marked(scaled(func(*args, **kwargs), factors, mode.plan), Mark(DEVIATION))

    for func in spellings("rsqrt"):
        monkeypatch.setitem(TABLE, func, replace(right, handler=wrong))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_rule_that_is_broken_loses_relevance(dtype, monkeypatch):
    _wrong_norm(monkeypatch)
    checks = failed(verify_view(tiny_model("llama", dtype=dtype), FEW))
    assert set(checks) == {SUMS}
    assert checks[SUMS].subject == "lrp"


def test_a_gradient_that_is_broken_is_no_derivative(monkeypatch):
    right = run.explain_many

    def wrong(*args, **options):
        return {request: result.mapped(lambda x: 1.01 * x) for request, result in right(*args, **options).items()}

    monkeypatch.setattr(run, "explain_many", wrong)
    assert set(failed(verify_view(tiny_model("llama", dtype="float64"), ALONE))) == {DERIVATIVE}


def test_attention_in_one_piece_that_is_broken_differs_from_its_twin(monkeypatch):
    monkeypatch.setattr(attention, "_of_values", lambda composite: 1.0)
    assert TWINS in failed(verify_view(tiny_model("llama", dtype="float64"), FEW))


def test_a_view_that_asks_otherwise_than_users_fails_against_the_stock_model(monkeypatch):
    view = tiny_model("gpt2", num_hidden_layers=1)
    right = forward.inputs_of

    def shifted(view, texts):
        return {**right(view, texts), "position_ids": 2 + torch.arange(texts.input_ids.shape[1])[None]}

    monkeypatch.setattr(forward, "inputs_of", shifted)
    assert failed(verify_view(view, ALONE))[STOCK].measured > 1e-3


def of_neighbours(view, batch, requests):
    """The number of rows in the batch, as relevance."""
    return _told(view, batch, requests, float(len(batch)))


def _told(view, batch, requests, value):
    batch = batch.to(view.device)
    with torch.no_grad():
        logits = view.logits(batch)
    return {request: without_sum(batch.attention_mask * value, logits) for request in requests}


def bad(explain):
    names = {"explanations": ("none",), "embeddings": ("none",), "conserves": False}
    return {"lrp": METHODS["lrp"], "bad": Method("bad", version=1, label="Bad", explain=explain, **names)}


def test_a_method_that_sees_its_neighbours_is_named():
    finding = failed(verify_view(tiny_model("bert", num_hidden_layers=1), bad(of_neighbours)))[PADDED]
    assert finding.subject == "bad"


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
