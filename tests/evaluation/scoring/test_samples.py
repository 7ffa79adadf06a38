"""Relevance joined with its views by sample."""

import numpy as np
import pyarrow as pa
import pytest

from evaluation.schema import RELEVANCE, VIEW
from evaluation.scoring.metrics import METRICS
from evaluation.scoring.samples import Masks, Mismatch, accuracy, negligible, noise, score_relevance, summarise
from tests import oracles_metrics


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
    found, defects = score_relevance(relevance([("a", [1, 2, 3], 1, None)]), masks, {})
    assert defects == {}
    means = summarise(found, {}).to_pylist()
    assert {row["metric"] for row in means} == set(METRICS)
    assert {(row["value"], row["n"]) for row in means} == {(None, 0)}


SPECIAL_LAST = views([("a", [0, 1, 0, 0], [0, 0, 0, 1], [1, 1, 0, 0]), ("b", [1, 0, 0], [0, 0, 1], [1, 0, 0])])


def by_variant(table):
    return {(row["tokens"], row["scope"], row["sample_id"]): row for row in table.to_pylist()}


def test_tokens_and_scope_choose_what_counts():
    found, defects = score_relevance(relevance([("a", [0, 2, 3, 9], 1, 0)]), Masks.of(SPECIAL_LAST))
    rows = by_variant(found)
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
    found, _ = score_relevance(relevance([("a", [0, 2], 1, 0)]), masks)
    assert set(found["scope"].to_pylist()) == {"full"}


def test_views_with_and_without_scope_are_refused():
    with pytest.raises(Mismatch, match="1 of 2 views have no scope"):
        Masks.of(views([("a", [1], [0], None), ("b", [1], [0], [1])]))


def test_rows_join_by_sample_whatever_their_order():
    rows = [("b", [1, 2, 3], 1, 0), ("a", [1, 5, 3, 4], 1, 0), ("b", [5, 2, 9], 1, 0)]
    found, _ = score_relevance(relevance(rows), Masks.of(SPECIAL_LAST))
    full = [r for r in found.to_pylist() if (r["tokens"], r["scope"]) == ("all", "full")]
    assert [(r["sample_id"], round(1 / r["mrr"])) for r in full] == [("b", 3), ("a", 1), ("b", 2)]


def test_relevance_without_a_view_is_refused():
    with pytest.raises(Mismatch, match="sample z has relevance but no view"):
        score_relevance(relevance([("z", [1], 1, 0)]), Masks.of(SPECIAL_LAST))


def test_relevance_of_another_length_is_refused():
    with pytest.raises(Mismatch, match="sample b has 2 relevances for 3 tokens"):
        score_relevance(relevance([("b", [1, 2], 1, 0)]), Masks.of(SPECIAL_LAST))


def test_defects_are_counted_by_name():
    _, defects = score_relevance(relevance([("b", [np.nan, 2, 3], 1, 0)]), Masks.of(SPECIAL_LAST))
    assert defects == {"relevance that is not finite": 4}, "once for each choice of tokens and scope"


def test_means_are_over_correct_samples_in_percent():
    rows = [("a", [0, 1, 0, 0], 1, 0), ("b", [0, 1, 0], 1, 0), ("b", [9, 1, 0], 0, 1)]
    found, _ = score_relevance(relevance(rows), Masks.of(SPECIAL_LAST))
    means = {(r["tokens"], r["scope"], r["metric"]): (r["value"], r["n"]) for r in summarise(found).to_pylist()}
    assert means["all", "full", "pg"] == (50, 2)
    expected = 100 * (oracles_metrics.mrr([0, 1, 0, 0], [0, 1, 0, 0]) + oracles_metrics.mrr([0, 1, 0], [1, 0, 0])) / 2
    assert means["all", "full", "mrr"][0] == pytest.approx(expected)


def test_relevance_below_the_rounding_of_a_logit_it_shares_out_is_noise():
    rows = [
        ("a", [0, 3e-5, 0, 0], 4, 0),
        ("a", [0, -5e-5, 0, 0], 4, 0),
        ("b", [0, 3e-5, 0], 1, -4),
        ("b", [0, 0, 0], 1, None),
    ]
    of_a_sum = relevance(rows).drop_columns("residual").append_column("residual", pa.array([0.0] * 4))
    assert negligible(of_a_sum).tolist() == [True, False, True, True]
    assert not negligible(relevance(rows)).any(), "what promises no sum has a scale of its own"
    assert negligible(of_a_sum.slice(0, 0)).tolist() == []
    marked = of_a_sum.append_column("noise", pa.array(negligible(of_a_sum)))
    [row] = noise(marked).to_pylist()
    assert row == {
        "explanation": "contrastive", "embedding": "full", "tokens": "all", "scope": "full",
        "metric": "noise", "value": 75.0, "n": 4,
    }  # fmt: skip


def test_without_correct_samples_there_is_no_mean():
    found, _ = score_relevance(relevance([("b", [0, 1, 0], 0, 1)]), Masks.of(SPECIAL_LAST))
    assert {(r["value"], r["n"]) for r in summarise(found).to_pylist()} == {(None, 0)}


def test_a_tie_of_logits_is_not_correct_and_a_sample_without_foil_is_not_counted():
    rows = [("a", [0, 1, 0, 0], 1, 0), ("b", [0, 1, 0], 1, 1), ("b", [0, 1, 0], 1, None)]
    assert accuracy(relevance(rows), Masks.of(SPECIAL_LAST)).to_pylist()[0]["value"] == 50
    assert accuracy(relevance(rows), Masks.of(SPECIAL_LAST)).to_pylist()[0]["n"] == 2
    found, _ = score_relevance(relevance(rows), Masks.of(SPECIAL_LAST))
    assert found.filter(found["correct"])["sample_id"].unique().to_pylist() == ["a"]


def test_accuracy_counts_a_sample_once_however_many_variants_it_has():
    once = relevance([("a", [0, 1, 0, 0], 1, 0), ("b", [0, 1, 0], 0, 1)])
    target = once.set_column(1, "explanation", pa.array(["target"] * 2))
    assert accuracy(pa.concat_tables([once, target.cast(once.schema)]), Masks.of(SPECIAL_LAST)).to_pylist()[0]["n"] == 2


def test_a_cell_without_samples_has_no_means_and_no_accuracy():
    nothing = relevance([])
    found, defects = score_relevance(nothing, Masks.of(views([])))
    assert (len(found), defects) == (0, {})
    assert summarise(found).num_rows == 0
    (row,) = accuracy(nothing, Masks.of(views([]))).to_pylist()
    assert (row["value"], row["n"]) == (None, 0)
    assert (
        accuracy(nothing, Masks.of(views([]))).schema
        == accuracy(relevance([("b", [0, 1, 0], 1, 0)]), Masks.of(SPECIAL_LAST)).schema
    )
