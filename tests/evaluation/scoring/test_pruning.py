import numpy as np
import pytest
import torch

from closelook.evaluation.scoring.head_orders import RemovalOrder, area, random_curves, ranked_curves
from closelook.evaluation.scoring.pruning import Sweep
from closelook.lrp_core import Batch
from closelook.lrp_core.records.types import UserError
from tests.oracles.rules import pruned_alone
from tests.tiny import ragged_rows, tiny_classifier, tiny_model

BUDGET = 64  # tokens: several passes a sample


def curves_of(view, count=3):
    return random_curves(view.n_layers * view.n_heads, count, seed=0)


def accuracy_of(sweep, rows):
    """The share of rows that are right at every point, [C, S], of those with finite logits."""
    right, finite = sweep.right(rows, BUDGET)
    return right[:, :, finite].mean(2)


def test_margins_equal_pruning_one_at_a_time(view):
    sweep = Sweep(view, curves_of(view))
    for row in ragged_rows(view):
        margins = sweep.margins(Batch.collate([row], pad_id=0), BUDGET)[torch.from_numpy(sweep.points)]  # [C, S]
        expected = [
            [pruned_alone(view, row, curve.heads[: int(removed)]) for removed in sweep.removed]
            for curve in sweep.curves
        ]
        torch.testing.assert_close(margins, torch.tensor(expected, dtype=margins.dtype), rtol=1e-9, atol=1e-9)


def test_accuracy_counts_samples_whose_target_wins_at_every_point(view):
    rows, curves = ragged_rows(view, lengths=(5, 8, 6, 9)), curves_of(view, 2)
    accuracy = accuracy_of(Sweep(view, curves, step=3), rows)
    removed = [0, 3, 6, 8]
    expected = [
        [np.mean([pruned_alone(view, row, curve.heads[:count]) > 0 for row in rows]) for count in removed]
        for curve in curves
    ]
    np.testing.assert_array_equal(accuracy, expected)


def test_a_label_is_right_where_it_wins_against_every_other():
    view = tiny_classifier("bert")
    rows = [{**row, "target_id": None, "foil_id": None} for row in ragged_rows(view, lengths=(5, 8, 6))]
    curves = curves_of(view, 2)
    accuracy = accuracy_of(Sweep(view, curves, step=3), [{**row, "gold_id": at} for at, row in enumerate(rows)])

    def wins(row, gold, gone):
        others = (label for label in range(view.n_targets) if label != gold)
        return all(pruned_alone(view, {**row, "target_id": gold, "foil_id": foil}, gone) > 0 for foil in others)

    expected = [
        [np.mean([wins(row, at, curve.heads[:count]) for at, row in enumerate(rows)]) for count in (0, 3, 6, 8)]
        for curve in curves
    ]
    np.testing.assert_array_equal(accuracy, expected)


def test_the_callers_autocast_and_training_mode_change_no_margin():
    view = tiny_model("gpt2", dtype="float32")
    sample = Batch.collate(ragged_rows(view, lengths=(6,)), pad_id=0)
    sweep = Sweep(view, curves_of(view))
    expected = sweep.margins(sample, BUDGET)
    view.model.train()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(sweep.margins(sample, BUDGET), expected)


@pytest.mark.parametrize("budget", [1, 40, 10_000])
def test_the_token_budget_changes_no_margin(budget):
    view = tiny_model("gpt2")
    [row] = ragged_rows(view, lengths=(6,))
    sample = Batch.collate([row], pad_id=0)
    sweep = Sweep(view, curves_of(view))
    torch.testing.assert_close(sweep.margins(sample, budget), sweep.margins(sample, 64), rtol=1e-9, atol=1e-9)
    assert all(len(layer.parents) <= max(1, budget // 6) for layers in sweep.passes(sample, budget) for layer in layers)


def test_sharing_lower_layers_changes_no_margin_and_saves_about_half_the_layer_rows():
    view = tiny_model("llama", num_hidden_layers=4)
    [row] = ragged_rows(view, lengths=(6,))
    sample = Batch.collate([row], pad_id=0)
    shared, plain = (Sweep(view, curves_of(view, 8), shared=shared) for shared in (True, False))
    torch.testing.assert_close(shared.margins(sample, 10_000), plain.margins(sample, 10_000), rtol=1e-9, atol=1e-9)

    def work(sweep):
        return sum(len(layer.parents) for layers in sweep.passes(sample, 10_000) for layer in layers)

    assert work(shared) < 0.65 * work(plain)


def test_equal_masks_of_different_curves_run_once():
    view = tiny_model("gpt2")
    [curve] = curves_of(view, 1)
    assert len(Sweep(view, [curve, curve]).masks) == len(Sweep(view, [curve]).masks) == 9


def test_ranked_curves_average_over_samples_and_break_ties_by_head():
    relevance = {("attnlrp", "none"): np.array([[3.0, 1.0, 0.0, 2.0], [1.0, 1.0, 0.0, 0.0]])}  # means 2 1 0 1
    least, most = ranked_curves(relevance)
    assert least == RemovalOrder("attnlrp", "none", "least_first", None, (2, 1, 3, 0))
    assert most == RemovalOrder("attnlrp", "none", "most_first", None, (0, 1, 3, 2))


def test_relevance_that_is_not_finite_is_refused():
    with pytest.raises(UserError, match="head relevance of lrp \\(none\\) is not finite"):
        ranked_curves({("lrp", "none"): np.array([[1.0, np.nan]])})


def test_random_curves_are_seeded_permutations():
    curves = random_curves(12, runs=10, seed=5)
    assert [curve.seed for curve in curves] == list(range(5, 15))
    assert all(sorted(curve.heads) == list(range(12)) for curve in curves)
    assert len({curve.heads for curve in curves}) == 10
    assert curves[1] == random_curves(12, runs=1, seed=6)[0]


def test_area_is_the_mean_height_over_the_share_removed():
    assert area(np.array([1.0, 1.0, 1.0]), np.array([0, 3, 8])) == pytest.approx(1.0)
    assert area(np.array([1.0, 0.5, 0.0]), np.array([0, 4, 8])) == pytest.approx(0.5)


def test_a_sweep_without_samples_has_no_sample_that_is_right():
    view = tiny_model("gpt2")
    right, finite = Sweep(view, curves_of(view, 1)).right([], BUDGET)
    assert (right.shape[0], right.shape[2], len(finite)) == (1, 0, 0)
