import numpy as np
import pytest

from closelook.evaluation.ablations.masks import Sizes, masks_of


@pytest.mark.parametrize("units", [9, 12, 40])
def test_masks_to_fit_and_to_judge_are_apart_and_full_and_single_ones_never_judge(units):
    masks = masks_of("a", units, 0, Sizes())
    assert masks.kept[masks.full].all()
    np.testing.assert_array_equal(masks.kept[masks.without], ~np.eye(units, dtype=bool))
    assert (len(masks.fit), len(masks.judge), masks.swapped) == (128, 64, False)
    never = {masks.full, *masks.without, *masks.fit}
    assert never.isdisjoint(masks.judge)
    assert len({mask.tobytes() for mask in masks.kept}) == len(masks.kept), "each is run once"


def test_each_unit_stays_in_half_of_the_masks_independently_of_others():
    drawn = [masks_of(str(sample), 12, 0, Sizes()) for sample in range(60)]
    kept = np.concatenate([masks.kept[np.concatenate([masks.fit, masks.judge])] for masks in drawn]).astype(float)
    assert np.abs(kept.mean(axis=0) - 0.5).max() < 0.02
    assert np.abs(np.cov(kept.T) - np.eye(12) / 4).max() < 0.02


@pytest.mark.parametrize("units", range(2, 9))
def test_of_few_units_every_other_mask_is_in_one_of_two_halves(units):
    masks = masks_of("a", units, 0, Sizes())
    assert masks.swapped
    assert set(masks.fit).isdisjoint(masks.judge)
    assert len(masks.judge) - len(masks.fit) in (0, 1)
    assert len(masks.fit) + len(masks.judge) == 2**units - units - 1
    assert {masks.full, *masks.without}.isdisjoint([*masks.fit, *masks.judge])


def test_halves_are_drawn_at_random_and_masks_are_a_samples_own():
    first, again, other = (masks_of(name, 6, 0, Sizes()) for name in ("a", "a", "b"))
    np.testing.assert_array_equal(first.kept, again.kept)
    assert not np.array_equal(first.kept, other.kept)
    assert not np.array_equal(first.kept, masks_of("a", 6, 1, Sizes()).kept)


def test_a_smaller_number_of_masks_is_the_beginning_of_a_larger():
    large, small = masks_of("a", 12, 0, Sizes()), masks_of("a", 12, 0, Sizes(fit=32))
    np.testing.assert_array_equal(large.kept[large.fit[:32]], small.kept[small.fit])


def test_sets_for_shapley_values_are_pairs_and_complements_beside_none():
    masks = masks_of("a", 10, 0, Sizes(shapley=128))
    pairs = len(masks.shapley_weights)
    assert pairs == 64
    none, sets, complements = np.split(masks.kept[masks.shapley], [1, 1 + pairs])
    assert not none.any()
    np.testing.assert_array_equal(sets, ~complements)
    assert not len(masks_of("a", 10, 0, Sizes()).shapley)


def test_random_units_that_go_together_are_all_there_are_or_some_of_them():
    few, many = masks_of("a", 5, 0, Sizes()), masks_of("a", 12, 0, Sizes())
    assert {gone: len(at) for gone, at in few.random.items()} == {3: 10}
    assert {gone: len(set(at)) for gone, at in many.random.items()} == {3: 32, 5: 32}
    for gone, at in many.random.items():
        assert ((~many.kept[at]).sum(axis=1) == gone).all()
