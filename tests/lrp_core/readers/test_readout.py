"""The model's own predictions at the readout position."""

from dataclasses import replace

import pytest
import torch

from closelook.lrp_core import Batch
from closelook.lrp_core.operations.forward import explained_numbers
from closelook.lrp_core.readers.predictions import decisions, predicted, with_predictions
from tests.tiny import ragged_rows, tiny_classifier, tiny_model


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama"])
def test_rows_without_a_target_get_the_models_own_prediction_and_others_keep_theirs(family):
    view = tiny_model(family)
    rows = ragged_rows(view, (7, 4, 10, 5))
    asked = [row | {"target_id": None, "foil_id": None} if at != 2 else row for at, row in enumerate(rows)]
    predicted = with_predictions(view, asked)
    for row, before, after in zip(rows, asked, predicted, strict=True):
        logits = view.model(input_ids=torch.tensor([row["input_ids"]])).logits[0, row["position"]]
        top_id = int(logits.argmax())
        assert after == (
            before if before["target_id"] is not None else before | {"target_id": top_id, "predicted_id": top_id}
        )


def test_neighbours_do_not_decide_between_tokens_that_are_nearly_equal():
    """In bfloat16 the same sample rounds otherwise in a batch of longer ones: of equal weights, noise decides."""
    view = tiny_model("llama", dtype="bfloat16")
    widths: list[tuple[int, ...]] = []
    hook = view.model.base_model.register_forward_pre_hook(
        lambda _, __, options: widths.append(tuple(options["input_ids"].shape[:2])), with_kwargs=True
    )
    rows = [row | {"target_id": None, "foil_id": None} for row in ragged_rows(view, (7, 4, 10))]
    together = with_predictions(view, rows)
    hook.remove()
    assert widths == [(1, 7), (1, 4), (1, 10)]
    assert together == [with_predictions(view, [row])[0] for row in rows]


@pytest.fixture
def shapes(request):
    """The [B, T] of every forward of a view's model, once it is called with the view."""

    def watch(view):
        seen = []

        def note(_, args, options):
            ids = args[0] if args else options["input_ids"]
            seen.append(tuple(ids.shape))

        handle = view.model.base_model.register_forward_pre_hook(note, with_kwargs=True)
        request.addfinalizer(handle.remove)
        return seen

    return watch


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("family", ["bert", "gpt2", "llama"])
def test_predictions_of_many_rows_share_a_forward_and_are_those_of_each_alone(family, dtype, shapes):
    view = tiny_model(family, dtype=dtype)
    view.unembedding.weight.mul_(20)  # logits that differ by more than rounding, which random weights' may not
    rows = [row | {"target_id": None, "foil_id": None} for row in ragged_rows(view, (7, 4, 10, 5))]
    seen = shapes(view)
    together = with_predictions(view, rows)
    assert seen == [(4, 10)]
    assert together == [with_predictions(view, [row])[0] for row in rows]


def test_rows_of_nearly_equal_logits_run_alone_among_others(shapes):
    view = tiny_model("gpt2", dtype="float32")
    view.unembedding.weight.mul_(20)
    rows = [row | {"target_id": None, "foil_id": None} for row in ragged_rows(view, (7, 4, 10))]
    [tied] = with_predictions(view, rows[:1])
    other = (tied["target_id"] + 1) % 50
    view.unembedding.weight[other] = view.unembedding.weight[tied["target_id"]] * (1 + 1e-6)
    seen = shapes(view)
    together = with_predictions(view, rows)
    assert seen[0] == (3, 10)
    assert (1, 7) in seen
    assert together == [with_predictions(view, [row])[0] for row in rows]


def test_the_runner_up_counts_among_nearly_equal_labels(shapes):
    view = tiny_classifier("bert", labels=3)
    view.model.classifier.weight.mul_(20)
    rows = [row | {"target_id": None} for row in ragged_rows(view, (6, 4))]
    [row] = with_predictions(view, rows[:1])
    third = ({0, 1, 2} - {row["target_id"], row["foil_id"]}).pop()
    for parameter in (view.model.classifier.weight, view.model.classifier.bias):
        parameter[third] = parameter[row["foil_id"]]
    seen = shapes(view)
    together = with_predictions(view, rows)
    assert (1, 6) in seen
    assert together == [with_predictions(view, [row])[0] for row in rows]


def test_the_target_of_a_score_is_the_score():
    view = tiny_classifier("bert", labels=1)
    rows = [row | {"target_id": None} for row in ragged_rows(view, (6, 4))]
    assert with_predictions(view, rows) == [row | {"target_id": 0} for row in rows]


@pytest.mark.parametrize("family", ["gpt2", "bert", "t5"])
def test_the_log_probability_of_a_certain_target_is_more_than_rounding(family):
    """The sum over the whole vocabulary is, in float32, the target's own exponential: their difference is noise."""
    wide = tiny_model(family)
    wide.unembedding.weight.mul_(25)
    batch = Batch.collate(ragged_rows(wide), 0)
    ids = predicted(wide, batch)[:, 0]
    batch = replace(batch, target_ids=ids)
    _, of_wide = explained_numbers(wide, batch, ["log_prob"])
    every = wide.all_logits(batch)[:, -1]
    others = every.scatter(1, ids[:, None], -torch.inf)
    by_hand = -torch.log1p((others - every.gather(1, ids[:, None])).exp().sum(1))
    torch.testing.assert_close(of_wide["log_prob"], by_hand, rtol=1e-9, atol=0)
    torch.testing.assert_close(of_wide["log_prob"], every.log_softmax(1).gather(1, ids[:, None])[:, 0])
    assert (by_hand.abs() < 1e-6).any()
    narrow = tiny_model(family, dtype="float32")
    narrow.unembedding.weight.mul_(25)
    _, numbers = explained_numbers(narrow, batch, ["log_prob"])
    torch.testing.assert_close(numbers["log_prob"].double(), by_hand, rtol=1e-3, atol=0)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("labels", [None, 3])
def test_a_decision_has_the_probabilities_of_the_stock_models_softmax(labels, dtype):
    view = tiny_model("bert", dtype=dtype) if labels is None else tiny_classifier("bert", labels, dtype=dtype)
    rows = ragged_rows(view, (7, 4, 10))
    rows[1] |= {"target_id": None}
    for row, decision in zip(rows, decisions(view, rows), strict=True):
        logits = view.model(torch.tensor([row["input_ids"]])).logits[0].double()
        log_probs = (logits if labels else logits[row["position"]]).log_softmax(-1)
        close = 0.05 if dtype == "bfloat16" else 1e-5
        best = log_probs.sort(descending=True).values[:2].tolist()
        assert decision.log_probs == pytest.approx(best, abs=close)
        target = decision.ids[0] if row["target_id"] is None else row["target_id"]
        assert decision.log_prob == pytest.approx(float(log_probs[target]), abs=close)
        assert [float(log_probs[at]) for at in decision.ids] == pytest.approx(best, abs=close)


def test_a_score_is_no_decision():
    view = tiny_classifier("bert", labels=1)
    assert decisions(view, [row | {"target_id": None} for row in ragged_rows(view)]) == []
