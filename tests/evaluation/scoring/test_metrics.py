"""Every metric against its definition, by hand and against a loop over samples."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from closelook.evaluation.schema import scores_samples_schema
from closelook.evaluation.scoring import blocks, metrics
from closelook.evaluation.scoring.metrics import METRICS, NO_EVIDENCE, NOT_FINITE, score
from closelook.evaluation.tasks import Task
from closelook.lrp_core.records.types import UserError
from tests.oracles import metrics as oracles_metrics

pytestmark = pytest.mark.numeric


def score_rows(rows, dtype=np.float64):
    """`rows` are (relevance, evidence) or (relevance, evidence, chosen)."""
    filled = [(r, e, c[0] if c else [True] * len(r)) for r, e, *c in rows]
    flat = [np.concatenate([np.asarray(row[k], kind) for row in filled]) for k, kind in enumerate((dtype, bool, bool))]
    return score(*flat, np.cumsum([0, *(len(row[0]) for row in rows)]))


def one(relevance, evidence, chosen=None, names=tuple(METRICS)):
    row = (relevance, evidence) if chosen is None else (relevance, evidence, chosen)
    scores = score_rows([row]).values
    return {name: float(scores[name][0]) for name in names}


def close_look(pg, pg2, mrr, mrr_strict, rma, pta):
    return {"pg": pg, "pg2": pg2, "mrr": mrr, "mrr_strict": mrr_strict, "rma": rma, "pta": pta}


SOFT = {"dot_softmax": 1 / (1 + np.exp(-2))}
EQUAL = {"iou": (1 + 4 / 3) / 6, "rra": 0.5}  # both, one or none of six pairs
#: Relevance, 1 for the tokens that are evidence, and metrics.
BY_HAND = {
    "without ties": ([0.5, -1, 2, 1], "1000", close_look(0, 0, 1 / 3, 1 / 3, 0.5 / 3.5, 0.5)),
    "two evidence tokens": ([3, -1, 2, 1], "0110", close_look(0, 1, 1 / 2, 1 / 2, 2 / 6, 0.25)),
    "ranks worsen where other values tie: 4 - 2 + 1": ([5, 0, 0, 0], "1000", {"mrr": 1 / 3, "mrr_strict": 1}),
    "two maxima, the first is evidence": ([2, 2], "10", {"pg": 0.5, "tied_tops": 1}),
    "two maxima, the last is evidence": ([2, 2], "01", {"pg": 0.5}),
    "one maximum": ([2, 1], "10", {"tied_tops": 0}),
    "three maxima, the last is evidence": ([2, 2, 2], "001", {"pg2": 2 / 3}),
    "three maxima, the middle is evidence": ([2, 2, 2], "010", {"pg2": 2 / 3}),
    "a tie for the second place": ([3, 2, 2], "010", {"pg2": 0.5}),
    "all zero": ([0, 0, 0, 0], "0100", close_look(0.25, 0.5, 0.25, 1, 0, 0.75)),
    "only negative": ([-3, -1, -2], "010", close_look(1, 1, 1, 1, 0, 2 / 3)),
    "a single token": ([1], "1", close_look(1, 1, 1, 1, 1, 1)),
    "overlaps": ([3, 2, -1, 1], "1010", {"iou": 1 / 3, "iou_positive": 1 / 4, "iou_soft": 1 / 3, "rra": 1 / 2}),
    "only ranks need no positive": ([-1, -2], "10", {"iou": 0, "iou_positive": 0, "iou_soft": 0, "rra": 1}),
    "equal tokens, the first are evidence": ([1, 1, 1, 1], "1100", EQUAL),
    "equal tokens, the last are evidence": ([1, 1, 1, 1], "0011", EQUAL),
    "a tie for the last places": ([5, 1, 1, 1], "1010", {"rra": 2 / 3}),
    "the paper's example": ([0.3, 0.1, 0.5, 0.1], "1000", {"ap": 0.5, "dot": 0.3}),
    "precision of equal tokens, the first": ([0, 0, 0, 0], "1000", {"ap": 0.25}),
    "precision of equal tokens, the last": ([0, 0, 0, 0], "0001", {"ap": 0.25}),
    "softmax": ([2, 0], "10", SOFT),
    "softmax of small numbers": ([-498, -500], "10", SOFT),
    "softmax of large numbers": ([10_002, 10_000], "10", SOFT),
}


@pytest.mark.parametrize("case", BY_HAND)
def test_metrics_by_hand(case):
    relevance, evidence, expected = BY_HAND[case]
    assert one(relevance, [mark == "1" for mark in evidence], names=expected) == pytest.approx(expected)


def test_tokens_that_are_not_chosen_do_not_count():
    chosen = one([9.0, 1.0, 0.5, 9.0], [False, True, False, False], [False, True, True, False])
    assert chosen == one([1.0, 0.5], [True, False])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_relevance_that_is_not_finite_is_never_right(value):
    scores = score_rows([([value, 1.0], [True, False]), ([1.0, 0.0], [True, False])])
    assert scores.defect.tolist() == [NOT_FINITE, 0]
    assert all(values[0] == 0 for values in scores.values.values())
    assert scores.values["pg"][1] == 1, "and its neighbours are not touched"


def test_relevance_that_is_not_finite_outside_the_chosen_tokens_does_not_matter():
    assert score_rows([([np.nan, 1.0], [False, True], [False, True])]).defect.tolist() == [0]


def test_a_sample_without_chosen_evidence_is_never_right():
    scores = score_rows([([-1.0, -2.0], [False, False]), ([1.0, 2.0], [True, False], [False, True])])
    assert scores.defect.tolist() == [NO_EVIDENCE, NO_EVIDENCE]
    assert all((values == 0).all() for values in scores.values.values())


def test_a_sample_without_tokens_is_never_right():
    scores = score_rows([([], []), ([1.0], [True]), ([2.0], [False], [False])])
    assert scores.defect.tolist() == [NO_EVIDENCE, 0, NO_EVIDENCE]


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="relevance has 3 tokens, evidence 2, chosen 3 and offsets 3: all must"):
        score(np.zeros(3), np.zeros(2, bool), np.ones(3, bool), np.array([0, 3]))


# Few distinct values, so that ties are common.
values = st.sampled_from([-2.0, -1.0, -0.0, 0.0, 0.5, 1.0, 1.5, 3.0])
tokens = st.tuples(values, st.booleans(), st.booleans())
samples = st.lists(st.lists(tokens, min_size=1, max_size=6), min_size=1, max_size=8)  # oracles enumerate tie orders


@given(samples, st.sampled_from([np.float32, np.float64]), st.sampled_from([1, 16, 1 << 18]))
@settings(max_examples=150, deadline=None)
def test_many_samples_at_once_equal_one_at_a_time(drawn, dtype, block_tokens):
    rows = [tuple(map(list, zip(*row, strict=True))) for row in drawn]
    rows = [row for row in rows if any(e and c for e, c in zip(row[1], row[2], strict=True))]
    if not rows:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_TOKENS", block_tokens)
        scores = score_rows(rows, dtype)
    for name, oracle in oracles_metrics.METRICS.items():
        kept = [[(r, e) for r, e, c in zip(*row, strict=True) if c] for row in rows]
        expected = [oracle([r for r, _ in row], [e for _, e in row]) for row in kept]
        np.testing.assert_allclose(scores.values[name], expected, rtol=1e-6, err_msg=name)


def test_every_metric_of_close_look_is_declared_and_has_a_column():
    schema = scores_samples_schema(METRICS)
    assert set(oracles_metrics.METRICS) <= set(METRICS)
    assert list(METRICS) == schema.names[-len(METRICS) :]
    assert {m.unit for m in METRICS.values()} == {"%"}
    assert [name for name, m in METRICS.items() if not m.higher_is_better] == ["tied_tops"]
    assert metrics.shown(metrics.OVERVIEW) == ["pg", "mrr", "rma", "pta"]
    assert metrics.shown(metrics.SETTINGS) == ["pg", "mrr", "rma"]
    assert metrics.lead() == "pg"


def test_two_metrics_of_one_name_are_an_error_that_names_both_modules():
    def rma(block):
        return block.count

    with pytest.raises(
        UserError, match=f"{__name__} and closelook.evaluation.scoring.metrics both bring a metric named 'rma'"
    ):
        metrics.metric("RMA too")(rma)


def test_a_task_has_the_metrics_that_its_record_and_its_evidence_allow():
    def names(**changes):
        return list(metrics.applicable(Task(name="t", title="t", **changes)))

    assert names() == list(METRICS)
    assert names(metrics=("rma", "pg")) == ["pg", "rma"]
    assert names(evidence=None) == []
    with pytest.raises(UserError, match=r"task t names the metric 'ptta' \(did you mean 'pta'\?\)"):
        names(metrics=("ptta",))


def test_a_metric_that_needs_no_evidence_is_told_of_samples_without():
    spread = metrics.Metric("spread", "Spread", lambda block: block.count, unit="tokens", needs_evidence=False)
    values, evidence = np.array([3.0, 1.0, 2.0, 1.0, np.nan]), np.array([1, 0, 0, 0, 0], bool)
    known = {"pg": METRICS["pg"], "spread": spread}
    scores = score(values, evidence, np.ones(5, bool), np.array([0, 2, 4, 5]), known)
    np.testing.assert_array_equal(scores.defect, [metrics.FINE, NO_EVIDENCE, NOT_FINITE])
    np.testing.assert_array_equal(scores.values["spread"], [2, 2, 0])
    np.testing.assert_array_equal(scores.values["pg"], [1, 0, 0])
    assert (spread.scale, METRICS["pg"].scale) == (1.0, 100.0)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (0.5, "metric pg gave float for 2 samples: it must give an array of shape (2,)"),
        (np.zeros((2, 1)), "metric pg gave an array of shape (2, 1) for 2 samples"),
        (np.zeros(3), "metric pg gave an array of shape (3,) for 2 samples"),
        (np.zeros(2, complex), "metric pg gave values of type complex128, not real numbers: return floats"),
        (np.array(["a", "b"]), "not real numbers: return floats"),
        (np.array([0.5, np.nan]), "metric pg gave nan for row 1 of a block: every value must be finite"),
    ],
)
def test_a_metric_that_gives_anything_but_a_finite_number_a_sample_is_refused(values, says):
    broken = replace(METRICS["pg"], function=lambda block: values)
    evidence = np.array([True, False, True, False])
    with pytest.raises(UserError, match=re.escape(says)):
        score(np.ones(4), evidence, np.ones(4, bool), np.array([0, 2, 4]), {"pg": broken})
