"""Orders of flipping, states and what is merged."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from closelook.evaluation.scoring.faithfulness.flips import (
    ORDERS,
    Flips,
    Ranking,
    States,
    candidates,
    flip_counts,
    share_counts,
    tie_order,
)
from closelook.lrp_core.records.types import UserError
from tests.oracles import faithfulness as oracle

NONE = np.zeros(6, bool)


@st.composite
def samples(draw):
    """Relevance [V, T] with many ties, tokens to flip, an order of ties."""
    length, variants = draw(st.integers(1, 9)), draw(st.integers(1, 3))
    numbers = st.lists(st.sampled_from([-1.0, -0.0, 0.0, 0.5, 2.0]), min_size=length, max_size=length)
    relevance = np.array(draw(st.lists(numbers, min_size=variants, max_size=variants)))
    chosen = np.array(draw(st.lists(st.booleans(), min_size=length, max_size=length)))
    chosen[draw(st.integers(0, length - 1))] = True
    return relevance, chosen, np.array(draw(st.permutations(range(length))))


def sets(states):
    return [frozenset(np.flatnonzero(state).tolist()) for state in states]


@given(samples())
def test_states_are_those_of_flipping_one_token_after_another(sample):
    relevance, chosen, ties = sample
    result = Ranking.of(relevance, chosen, ties).curves(flip_counts(int(chosen.sum()), 100))
    for values, curves in zip(relevance.tolist(), result, strict=True):
        for order, curve in zip(ORDERS, curves, strict=True):
            assert sets(curve) == oracle.flipping(lambda gone: gone, getattr(oracle, order)(values, ties, chosen))


@given(samples())
def test_shares_remove_the_top_tokens_or_all_others(sample):
    relevance, chosen, ties = sample
    counts = np.array([0, 30, 50, 100]) * int(chosen.sum()) // 100
    for values, (top, rest) in zip(relevance.tolist(), Ranking.of(relevance, chosen, ties).shares(counts), strict=True):
        order = oracle.morf(values, ties, chosen)
        assert sets(top) == [frozenset(order[:count]) for count in counts]
        assert sets(rest) == [frozenset(order[count:]) for count in counts]


def test_shares_are_rounded_down():
    assert share_counts(11).tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_steps_are_exact_up_to_their_number_and_even_beyond():
    assert flip_counts(7, 7).tolist() == list(range(8))
    assert flip_counts(3, 100).tolist() == [0, 1, 2, 3]
    assert flip_counts(1, 5).tolist() == [0, 1]
    counts = flip_counts(512, 100)
    assert (counts[0], counts[-1], len(counts)) == (0, 512, 101)
    assert set(np.diff(counts)) == {5, 6}
    np.testing.assert_allclose(counts, np.linspace(0, 512, 101), atol=0.5)


@pytest.mark.parametrize("steps", [0, -3])
def test_a_curve_without_steps_is_refused(steps):
    with pytest.raises(UserError, match="steps must be at least 1"):
        flip_counts(5, steps)


def test_candidates_are_the_scope_without_special_tokens_and_the_slot():
    special, scope = NONE.copy(), NONE.copy()
    special[[0, 5]] = True
    scope[[2, 3, 5]] = True
    assert candidates(6, special=special).all()
    assert np.flatnonzero(candidates(6, special=special, flip_special=False)).tolist() == [1, 2, 3, 4]
    assert np.flatnonzero(candidates(6, special=special, scope=scope)).tolist() == [2, 3, 5]
    assert np.flatnonzero(candidates(6, special=special, scope=scope, slot=3, flip_special=False)).tolist() == [2]


def test_an_empty_scope_is_refused():
    with pytest.raises(UserError, match="no token of the scope may be removed"):
        candidates(6, special=NONE, scope=NONE)
    with pytest.raises(UserError, match="no token may be removed"):
        candidates(1, special=np.zeros(1, bool), slot=0)


def test_ties_are_broken_alike_for_all_methods_and_differ_between_seeds_and_samples():
    ids = list(range(40))
    ties = tie_order(ids, 0)
    assert sorted(ties) == ids
    np.testing.assert_array_equal(ties, tie_order(np.array(ids), 0))
    others = [tie_order(ids, 1), tie_order([*ids[1:], 7], 0), np.arange(40)]
    assert all((ties != other).any() for other in others)
    turn = Ranking.of(np.array([[0.0] * 40, [3.0] * 40]), np.ones(40, bool), ties).turn
    np.testing.assert_array_equal(turn[0], turn[1])
    np.testing.assert_array_equal(turn[0], ties)


def test_deletion_stops_at_one_token():
    relevance, everything = np.array([[3.0, 1.0, 2.0]]), np.ones(3, bool)
    most, least = Ranking.of(relevance, everything, np.arange(3), keep_one=True).curves(flip_counts(3, 100))[0]
    assert sets(most) == [set(), {0}, {0, 2}, {0, 2}]
    assert sets(least) == [set(), {1}, {1, 2}, {1, 2}]
    part = np.array([True, True, False])
    gone = Ranking.of(relevance, part, np.arange(3), keep_one=True).curves(flip_counts(2, 100))[0, 0]
    assert sets(gone) == [set(), {0}, {0, 1}]
    _, rest = Ranking.of(relevance, everything, np.arange(3), keep_one=True).shares(np.array([0, 1]))[0]
    assert sets(rest) == [{1, 2}, {1, 2}]
    single = Ranking.of(np.array([[0.5]]), np.ones(1, bool), np.zeros(1, int), keep_one=True)
    assert not single.curves(flip_counts(1, 100)).any()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_relevance_that_is_not_finite_has_no_order_unless_it_is_of_a_token_that_stays(bad):
    relevance = np.array([[1.0, 2.0, 3.0], [1.0, bad, 3.0]])
    assert Ranking.of(relevance, np.ones(3, bool), np.arange(3)).finite.tolist() == [True, False]
    assert Ranking.of(relevance, np.array([True, False, True]), np.arange(3)).finite.all()


def test_equal_states_merge_and_points_lead_back_to_them():
    rng = np.random.default_rng(0)
    curves = rng.random((3, 2, 9, 11)) < 0.3
    states = States.of(curves)
    np.testing.assert_array_equal(states.removed[states.points], curves)
    assert len(states.removed) == len({tuple(state) for state in curves.reshape(-1, 11).tolist()})


def test_no_variant_with_an_order_means_no_states():
    states = States.of(np.zeros((0, 2, 5, 7), bool))
    assert states.removed.shape == (0, 7)
    assert states.points.shape == (0, 2, 5)


def test_shares_leave_special_tokens_alone_or_go_as_in_the_notebooks():
    row = {"special_mask": [True, *[False] * 9, True, *[False] * 8, True], "scope_mask": None, "position": 0}
    relevance = np.arange(20.0)[None]
    for paper, free in ((False, [*range(1, 10), *range(11, 19)]), (True, list(range(1, 20)))):
        flips = Flips("mask", 9, False, 0, measure="shares", paper=paper)
        ranking = Ranking.of(relevance, flips.chosen(row, slot=False), np.arange(20))
        counts, removed = flips.states(ranking)
        total = 20 if paper else len(free)
        tops = [percent * total // 100 for percent in range(0, 100, 10)]
        assert counts.tolist() == [tops, [0, *[len(free) - top for top in tops[1:]]]]
        for at, top in enumerate(tops):
            first = set(sorted(free, reverse=True)[:top])
            assert set(np.flatnonzero(removed[0, 0, at])) == first
            assert set(np.flatnonzero(removed[0, 1, at])) == (set(free) - first if at else set())
