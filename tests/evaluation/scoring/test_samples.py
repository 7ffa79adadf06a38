"""Relevance joined with its views by sample."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from closelook.evaluation.schema import RELEVANCE, VIEW
from closelook.evaluation.scoring.means import Means, summarise
from closelook.evaluation.scoring.metrics import METRICS
from closelook.evaluation.scoring.samples import VARIANT, Masks, Mismatch, noise_of, peaks, score_relevance
from tests.oracles import metrics as oracles_metrics


def views(rows):
    """`rows` are (sample_id, evidence, special, scope or None)."""
    fields = ("sample_id", "evidence_mask", "special_mask", "scope_mask")
    rest = {"position": 0, "target_id": 0, "foil_id": 0}
    marks = [(name, *(m if m is None else [bool(bit) for bit in m] for m in masks)) for name, *masks in rows]
    records = [dict(zip(fields, row, strict=True)) | rest for row in marks]
    return pa.Table.from_pylist([r | {"length": len(r["evidence_mask"]), "input_ids": []} for r in records], VIEW)


def relevance(rows):
    """`rows` are (sample_id, relevance, logit_target, logit_foil)."""
    fields = ("sample_id", "relevance", "logit_target", "logit_foil")
    rest = {"explanation": "contrastive", "embedding": "full", "explained": 0.0, "residual": None}
    return pa.Table.from_pylist([dict(zip(fields, row, strict=True)) | rest for row in rows], RELEVANCE)


def test_a_task_without_evidence_has_means_without_a_value_and_no_defect():
    without = views([("a", [0, 0, 0], [0, 0, 1], None)]).to_pylist()
    masks = Masks.of(pa.Table.from_pylist([row | {"evidence_mask": None} for row in without], VIEW))
    shown, defects = score_relevance(relevance([("a", [1, 2, 3], 1, None)]), masks, {})
    assert defects == {}
    means = summarise(shown, {}).to_pylist()
    assert {row["metric"] for row in means} == set(METRICS)
    assert {(row["value"], row["n"]) for row in means} == {(None, 0)}


SPECIAL_LAST = views([("a", [0, 1, 0, 0], [0, 0, 0, 1], [1, 1, 0, 0]), ("b", [1, 0, 0], [0, 0, 1], [1, 0, 0])])


def facts_of(metric, parts):
    """The means of this name, of relevance that comes in parts."""
    result = Means(Masks.of(SPECIAL_LAST))
    for part in parts:
        result.add(part)
    return [row for row in result.table().to_pylist() if row["metric"] == metric]


def by_variant(table):
    return {(row["tokens"], row["scope"], row["sample_id"]): row for row in table.to_pylist()}


def test_tokens_and_scope_choose_what_counts():
    shown, defects = score_relevance(relevance([("a", [0, 2, 3, 9], 1, 0)]), Masks.of(SPECIAL_LAST))
    rows = by_variant(shown)
    assert not defects
    assert {key: row["pta"] for key, row in rows.items()} == pytest.approx(
        {
            ("non_special", "full", "a"): 2 / 3,
            ("all", "full", "a"): 2 / 4,
            ("non_special", "context", "a"): 1,
            ("all", "context", "a"): 2 / 3,
        }
    )
    assert rows["non_special", "context", "a"]["pg"] == 1
    assert rows["non_special", "full", "a"]["pg"] == 0


def test_a_task_without_scopes_has_the_full_scope_only():
    masks = Masks.of(views([("a", [0, 1], [1, 0], None)]))
    shown, _ = score_relevance(relevance([("a", [0, 2], 1, 0)]), masks)
    assert set(shown["scope"].to_pylist()) == {"full"}


def test_views_with_and_without_scope_are_refused():
    with pytest.raises(Mismatch, match="1 of 2 views have no scope"):
        Masks.of(views([("a", [1], [0], None), ("b", [1], [0], [1])]))


def test_rows_join_by_sample_whatever_their_order():
    rows = [("b", [1, 2, 3], 1, 0), ("a", [1, 5, 3, 4], 1, 0), ("b", [5, 2, 9], 1, 0)]
    shown, _ = score_relevance(relevance(rows), Masks.of(SPECIAL_LAST))
    full = [r for r in shown.to_pylist() if (r["tokens"], r["scope"]) == ("all", "full")]
    assert [(r["sample_id"], round(1 / r["mrr"])) for r in full] == [("b", 3), ("a", 1), ("b", 2)]


def test_relevance_without_a_view_is_refused():
    with pytest.raises(Mismatch, match="sample z has relevance but no view"):
        score_relevance(relevance([("z", [1], 1, 0)]), Masks.of(SPECIAL_LAST))


def test_relevance_of_another_length_is_refused():
    with pytest.raises(Mismatch, match="sample b has relevance for 2 tokens, but its view has 3"):
        score_relevance(relevance([("b", [1, 2], 1, 0)]), Masks.of(SPECIAL_LAST))


def test_defects_are_counted_by_name():
    _, defects = score_relevance(relevance([("b", [np.nan, 2, 3], 1, 0)]), Masks.of(SPECIAL_LAST))
    assert defects == {"relevance that is not finite": 4}, "once for each choice of tokens and scope"


def test_means_are_over_correct_samples_in_percent():
    rows = [("a", [0, 1, 0, 0], 1, 0), ("b", [0, 1, 0], 1, 0), ("b", [9, 1, 0], 0, 1)]
    shown, _ = score_relevance(relevance(rows), Masks.of(SPECIAL_LAST))
    means = {(r["tokens"], r["scope"], r["metric"]): (r["value"], r["n"]) for r in summarise(shown).to_pylist()}
    assert means["all", "full", "pg"] == (50, 2)
    expected = 100 * (oracles_metrics.mrr([0, 1, 0, 0], [0, 1, 0, 0]) + oracles_metrics.mrr([0, 1, 0], [1, 0, 0])) / 2
    assert means["all", "full", "mrr"][0] == pytest.approx(expected)


def test_the_largest_relevance_of_a_typical_sample_is_measured_against_the_larger_logit():
    rows = [
        ("a", [0, 3e-5, 0, 0], 4, 0),
        ("a", [0, -5e-5, 0, 0], 4, 0),
        ("b", [0, 3e-5, 0], 1, -4),
        ("b", [0, 0, 0], 1, None),
        ("b", [0, np.nan, 0], 1, None),
    ]
    of_a_sum = relevance(rows).drop_columns("residual").append_column("residual", pa.array([0.0] * 5))
    assert peaks(of_a_sum) == pytest.approx([7.5e-6, 1.25e-5, 7.5e-6, 0, np.inf])
    assert peaks(of_a_sum.slice(0, 0)).tolist() == []
    [row] = facts_of("peak", [of_a_sum])
    assert row.pop("value") == pytest.approx(7.5e-4)
    assert row == {
        "explanation": "contrastive", "embedding": "full", "tokens": "all", "scope": "full", "metric": "peak", "n": 5,
    }  # fmt: skip
    assert facts_of("peak", [relevance(rows)]) == [], "what promises no sum has a scale of its own"


def test_relevance_between_rounding_and_ten_times_as_much_is_an_answer_of_its_own():
    assert [noise_of(peak) for peak in (0.0, 1e-5, 1.1e-5, 1e-4, 1.1e-4, np.inf)] == [
        "noise", "noise", "near noise", "near noise", None, None,
    ]  # fmt: skip


@pytest.mark.parametrize("threshold", [1e-5, 1e-4])
def test_no_stored_number_jumps_where_rounding_moves_a_sample_across_a_threshold(threshold):
    """A third of the samples have relevance of just the threshold, as one of the demo's had on another processor."""

    def stored(processor: float) -> dict[str, float]:
        rows = [("b", [0, threshold * (1 + processor * sign), 0], 1, None) for sign in (1, -1, 0)]
        of_a_sum = relevance(rows).drop_columns("residual").append_column("residual", pa.array([0.0] * 3))
        means = Means(Masks.of(SPECIAL_LAST))
        means.add(of_a_sum)
        rows = (row for row in means.table().to_pylist() if row["value"] is not None)
        return {"/".join([row["metric"], row["tokens"], row["scope"]]): row["value"] for row in rows}

    assert stored(1e-6) == pytest.approx(stored(-1e-6), rel=1e-5)
    assert stored(1e-6) == pytest.approx(stored(0.0), rel=1e-5)


def test_without_correct_samples_there_is_no_mean():
    shown, _ = score_relevance(relevance([("b", [0, 1, 0], 0, 1)]), Masks.of(SPECIAL_LAST))
    assert {(r["value"], r["n"]) for r in summarise(shown).to_pylist()} == {(None, 0)}


def test_a_tie_of_logits_is_not_correct_and_a_sample_without_foil_is_not_counted():
    rows = [("a", [0, 1, 0, 0], 1, 0), ("b", [0, 1, 0], 1, 1), ("b", [0, 1, 0], 1, None)]
    [row] = facts_of("accuracy", [relevance(rows)])
    assert (row["value"], row["n"]) == (50, 2)
    shown, _ = score_relevance(relevance(rows), Masks.of(SPECIAL_LAST))
    assert shown.filter(shown["correct"])["sample_id"].unique().to_pylist() == ["a"]


def test_accuracy_counts_a_sample_once_however_many_variants_it_has():
    once = relevance([("a", [0, 1, 0, 0], 1, 0), ("b", [0, 1, 0], 0, 1)])
    target = once.set_column(1, "explanation", pa.array(["target"] * 2))
    for parts in ([pa.concat_tables([once, target.cast(once.schema)])], [once, target.cast(once.schema)]):
        [row] = facts_of("accuracy", parts)
        assert row["n"] == 2


def test_a_cell_without_samples_has_no_means_and_no_accuracy():
    nothing = relevance([])
    shown, defects = score_relevance(nothing, Masks.of(views([])))
    assert (len(shown), defects) == (0, {})
    assert summarise(shown).num_rows == 0
    [row] = facts_of("accuracy", [nothing])
    assert (row["value"], row["n"]) == (None, 0)
    assert facts_of("peak", [nothing]) == []


@pytest.mark.parametrize("cuts", [[1], [2, 3], [0, 4]])
def test_means_of_parts_are_those_of_the_whole(cuts):
    rows = [
        ("a", [0, 1, 0, 0], 1, 0), ("b", [0, 1, 0], 1, 0), ("b", [9, 1, 0], 0, 1),
        ("a", [0.1, 0.2, 0.3, 7], 1, None), ("a", [0, 0, 0, 0], 2, 1), ("b", [3, 0.7, 0.1], 1, 0),
    ]  # fmt: skip
    whole = relevance(rows).drop_columns("residual").append_column("residual", pa.array([0.0] * len(rows)))
    edges = [0, *cuts, len(rows)]
    parts = [whole.slice(start, end - start) for start, end in pairwise(edges)]
    at_once, merged = Means(Masks.of(SPECIAL_LAST)), Means(Masks.of(SPECIAL_LAST))
    every = at_once.add(whole)
    of_parts = pa.concat_tables([merged.add(part) for part in parts])
    order = [(name, "ascending") for name in (*VARIANT, "sample_id", "correct", "pta")]
    assert of_parts.sort_by(order).equals(every.sort_by(order))
    assert merged.defects == at_once.defects
    for row, other in zip(at_once.table().to_pylist(), merged.table().to_pylist(), strict=True):
        assert other == {
            **row,
            "value": row["value"] if row["value"] is None else pytest.approx(row["value"], rel=1e-12),
        }
    assert {row["metric"] for row in merged.table().to_pylist()} == {*METRICS, "accuracy", "peak"}
