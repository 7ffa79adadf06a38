"""AtMan and occlusion, against one forward a token; rows of forwards."""

from dataclasses import replace

import pytest
import torch

from closelook.lrp_core import METHODS, Batch, Request, UnsupportedMethod, UserError
from tests.asked import CLOSE, EXPLANATIONS, close, explain, widths
from tests.oracles import methods as oracles
from tests.tiny import ragged_rows

pytestmark = pytest.mark.numeric


@pytest.mark.thinned(9)
@pytest.mark.parametrize("as_printed", [False, True])
@pytest.mark.parametrize("explanation", ["contrastive", "target", "log_prob"])
def test_atman_equals_one_forward_a_token(view, rows, explanation, as_printed):
    asked = {"explanation": "target", "score": "log_prob"} if explanation == "log_prob" else {"score": "logit"}
    asked = {"explanation": explanation} | asked
    relevance = explain("atman", view, rows, suppression=0.7, as_printed=as_printed, **asked)
    close(relevance, [oracles.atman(view, row, explanation, 0.7, as_printed) for row in rows])


@pytest.mark.thinned(6)
@pytest.mark.parametrize("how", ["zero", "mask", "delete"])
@pytest.mark.parametrize("explanation", EXPLANATIONS)
def test_occlusion_equals_one_forward_a_token(view, rows, explanation, how):
    if how not in view.kind.perturbations:
        with pytest.raises(UnsupportedMethod, match=r"occlusion needs .* use how 'zero'"):
            explain("occlusion", view, rows, how=how)
        return
    if how == "mask":
        with pytest.raises(UserError, match="put the model's mask token there"):
            explain("occlusion", view, rows, how=how)
        rows = [
            {**row, "input_ids": [3 if t == row["position"] else i for t, i in enumerate(row["input_ids"])]}
            for row in rows
        ]
    relevance = explain("occlusion", view, rows, how=how, explanation=explanation)
    close(relevance, [oracles.occlusion(view, row, explanation, how) for row in rows])


def test_deleting_the_only_token_says_nothing(view):
    if "delete" in view.kind.perturbations:
        relevance = explain("occlusion", view, ragged_rows(view, (1, 3)), how="delete")
        assert relevance[0].tolist() == [0.0]
        assert relevance[1].all()


@pytest.mark.thinned(8)
@pytest.mark.parametrize("name", ["atman", "occlusion", "integrated_gradients", "smoothgrad", "kernel_shap"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_the_token_budget_bounds_the_rows_of_a_forward_and_changes_no_number(view, rows, name, side):
    batch, few = Batch.collate(rows, 0, side), {"samples": 20} if name == "kernel_shap" else {}
    sizes, undo = widths(view)
    whole = METHODS[name](view, batch, token_budget=10**6, **few).tokens
    most, sizes[:] = len(sizes), []
    tight = METHODS[name](view, batch, token_budget=64, **few).tokens
    undo()
    torch.testing.assert_close(tight, whole, **CLOSE)
    assert len(sizes) > most
    assert max(rows * tokens for rows, tokens in sizes) <= 64


@pytest.mark.thinned(6)
@pytest.mark.parametrize(
    "name", ["integrated_gradients", "smoothgrad", "grad_attention_rollout", "gradcam", "atman", "occlusion"]
)
def test_explanations_of_one_call_are_those_of_two(view, rows, name):
    method, batch = METHODS[name], Batch.collate(rows, 0)
    both = [method.bound(Request(name, explanation, method.embeddings[0])) for explanation in method.explanations]
    assert len(both) > 1
    result = method.compute(view, batch, both)
    for request in both:
        alone = method(view, batch, explanation=request.explanation)
        torch.testing.assert_close(result[request].tokens, alone.tokens, rtol=1e-9, atol=1e-12)
        assert torch.equal(result[request].explained, alone.explained)


@pytest.mark.thinned(3)
def test_no_foil_explains_the_target_in_every_method(view, rows):
    alone = replace(Batch.collate(rows, 0), foil_ids=None)
    for name in ("integrated_gradients", "smoothgrad", "grad_attention_rollout", "gradcam", "atman", "occlusion"):
        relevance = METHODS[name](view, alone)
        assert relevance.logit_foil is None
        both = METHODS[name](view, Batch.collate(rows, 0), explanation="target")
        torch.testing.assert_close(relevance.tokens, both.tokens, **CLOSE)
