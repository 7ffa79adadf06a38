"""Curves of several methods drawn together, against one forward a state, and what becomes of rows that fail."""

from dataclasses import replace
from functools import cache

import numpy as np
import pyarrow as pa
import pytest
import torch

from closelook.evaluation.schema import CURVES, RELEVANCE_DOUBLE
from closelook.evaluation.scoring.faithfulness.flipping import Flips
from closelook.evaluation.scoring.faithfulness.flips import SHARES_OF_TOKENS, candidates, flip_counts, tie_order
from closelook.jobs.cluster.attempts import Attempts
from closelook.jobs.products.drawing import Drawing, claims_of
from closelook.jobs.store import Store
from closelook.lrp_core import ModelView
from tests.evaluation.scoring.test_flipping import MASK_ID, WAYS, alone
from tests.jobs.computing import drawn as drawn_by
from tests.oracles import faithfulness as oracle
from tests.tiny import ragged_rows, tiny_model

LENGTHS = (7, 4, 10, 2)
VARIANTS = {"lrp": [("contrastive", "full"), ("target", "full")], "random": [("none", "none")]}
SCORED = {
    "lrp": {("contrastive", "contrast"), ("target", "target")},
    "random": {("none", "target"), ("none", "contrast")},
}
DRAWS = 3
FAMILIES = sorted({family for family, _ in WAYS})


@pytest.fixture(params=FAMILIES)
def view(request):
    """Its last token has no embedding: in its place, a token is zeroed."""
    view = tiny_model(request.param)
    view.token_embedding.weight.data[view.vocab - 1] = 0
    return view


def rows_of(view, lengths=LENGTHS):
    rows = []
    for at, row in enumerate(ragged_rows(view, lengths)):
        ids = [min(token, view.vocab - 2) for token in row["input_ids"]]
        special = [index == 0 and len(ids) > 2 for index in range(len(ids))]
        rows.append({**row, "sample_id": f"s{at}", "input_ids": ids, "special_mask": special, "scope_mask": None})
    return [with_replacements(view, row) for row in rows]


def with_replacements(view, row, draws=DRAWS, seed=0):
    """A row with tokens to stand in place of its own; nothing but the token itself is excluded."""
    draw = np.random.default_rng(seed)
    drawn = draw.integers(0, view.vocab - 2, (draws, len(row["input_ids"])))
    drawn += drawn >= np.array(row["input_ids"])
    return {**row, "replacements": drawn}


def expected_at(view, row, gone, way):
    """The numbers of a state of one sample, one forward for each draw."""
    if way != "resample":
        return alone(view, row, gone, way)
    numbers = []
    for tokens in row["replacements"].tolist():
        ids = [tokens[at] if at in gone else token for at, token in enumerate(row["input_ids"])]
        numbers.append(alone(view, {**row, "input_ids": ids}, set(), way))
    return oracle.mean_over_draws(numbers)


def logit_of(view, row, gone=frozenset()):
    return alone(view, row, gone, "zero")[0]


def relevance_of(view, rows, variants, seed=0):
    """A relevance table with ties, as it is stored."""
    draw = np.random.default_rng(seed)
    result = [
        {
            "sample_id": row["sample_id"],
            "explanation": explanation,
            "embedding": embedding,
            "relevance": draw.integers(-2, 3, len(row["input_ids"])).astype(float),
            "explained": 0.0,
            "residual": None,
            "logit_target": logit_of(view, row),
            "logit_foil": None,
        }
        for row in rows
        for explanation, embedding in variants
    ]
    return pa.Table.from_pylist(result, schema=RELEVANCE_DOUBLE)


@pytest.fixture
def attempts(tmp_path):
    store = Store(str(tmp_path))
    store.create()
    result = Attempts(store, "curves.unit", 2, "run")
    result.begin()
    return result


def flips_of(view, steps=100, flip_special=True):
    ways = view.kind.perturbations
    return tuple(Flips(way, steps, flip_special, 0, MASK_ID, draws=DRAWS if way == "resample" else 1) for way in ways)


def drawing_of(view, rows, claims=None, token_budget=10_000, **options):
    tables = {
        method: relevance_of(view, rows, variants, seed) for seed, (method, variants) in enumerate(VARIANTS.items())
    }
    claims = claims or {method: claims_of(method, table, VARIANTS[method]) for method, table in tables.items()}
    return Drawing(view, "float64", flips_of(view, **options), token_budget, claims)


@pytest.mark.thinned(4)
@pytest.mark.parametrize(("steps", "flip_special"), [(100, True), (3, True), (100, False)])
def test_every_curve_is_that_of_one_forward_a_state(view, attempts, steps, flip_special):
    rows = rows_of(view)
    rows[1]["scope_mask"] = [False, True, False, True]
    drawing = drawing_of(view, rows, steps=steps, flip_special=flip_special)
    drawn = drawn_by(drawing, rows, attempts)
    assert not any(drawn.rejects.values())
    by_name = {row["sample_id"]: row for row in rows}

    @cache  # orders, scores and methods share states
    def expected_of(sample, gone, way):
        return expected_at(view, by_name[sample], gone, way)

    seen = 0
    for method in VARIANTS:
        table = drawn.table(method).to_pylist()
        scored = {(curve["explanation"], curve["score"]) for curve in table}
        assert scored == SCORED[method]
        assert len(table) == len(rows) * len(SCORED[method]) * 2 * len(view.kind.perturbations)
        for curve in table:
            row = by_name[curve["sample_id"]]
            claims = {(s.explanation, s.embedding): s for s in drawing.claims[method][row["sample_id"]]}
            relevance = claims[curve["explanation"], curve["embedding"]].relevance.tolist()
            special, slot = np.array(row["special_mask"]), row["position"] if view.kind.slot else None
            chosen = candidates(
                len(relevance), special=special, scope=row["scope_mask"], slot=slot, flip_special=flip_special
            )
            order = getattr(oracle, curve["order"])(relevance, tie_order(row["input_ids"], 0), chosen)
            counts = flip_counts(len(order), steps).tolist()
            assert curve["removed"] == counts
            gone = [order[:count] for count in counts]
            if curve["perturbation"] == "delete" and len(gone[-1]) == len(relevance):
                gone[-1] = gone[-1][:-1]  # one token stays
            states = [(row["sample_id"], frozenset(tokens), curve["perturbation"]) for tokens in gone]
            expected = np.array([expected_of(*state) for state in states]).T
            followed = expected[0] - (expected[3] if curve["score"] == "contrast" else 0)
            np.testing.assert_allclose(curve["logit"], followed, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(curve["probability"], np.exp(expected[1]), rtol=1e-5)
            assert curve["correct"] == expected[2].astype(bool).tolist()
            assert curve["area"] == pytest.approx(np.trapezoid(followed, np.array(counts) / counts[-1]), rel=1e-9)
            assert curve["ranked"] == {"full": "positions", "none": "any"}[curve["embedding"]]
            seen += 1
    assert seen


def test_without_a_foil_every_curve_follows_the_target(view, attempts):
    rows = [{**row, "foil_id": None} for row in rows_of(view)]
    drawn = drawn_by(drawing_of(view, rows), rows, attempts)
    assert {curve["score"] for curve in drawn.table("random").to_pylist()} == {"target"}


def test_shares_follow_the_target_whatever_is_explained(view, attempts):
    rows = rows_of(view)
    drawing = drawing_of(view, rows)
    ways = tuple(replace(way, measure=SHARES_OF_TOKENS) for way in drawing.ways)
    drawn = drawn_by(replace(drawing, ways=ways), rows, attempts)
    assert {curve["score"] for curve in drawn.table("lrp").to_pylist()} == {"target"}


def test_states_that_methods_and_orders_share_run_once(attempts, monkeypatch):
    view, counted, all_logits = tiny_model("gpt2"), [], ModelView.all_logits

    def counting(self, batch):
        counted.append(len(batch))
        return all_logits(self, batch)

    rows = rows_of(view, (6,))
    table = relevance_of(view, rows, VARIANTS["lrp"])
    table = table.set_column(
        3, RELEVANCE_DOUBLE.field("relevance"), pa.array([np.arange(6.0)] * 2, pa.list_(pa.float64()))
    )
    claims = {method: claims_of(method, table, VARIANTS["lrp"]) for method in ("lrp", "attnlrp")}
    monkeypatch.setattr(ModelView, "all_logits", counting)
    drawing = Drawing(view, "float64", flips_of(view)[:1], 10_000, claims)
    drawn_by(drawing, rows, attempts)
    assert sum(counted) == 12, "both orders of six tokens; their ends are the same"


def test_a_sample_of_one_token_has_a_curve_of_two_points(attempts):
    view = tiny_model("gpt2")
    rows = rows_of(view, (1,))
    drawn = drawn_by(drawing_of(view, rows), rows, attempts)
    for curve in drawn.table("lrp").to_pylist():
        assert curve["removed"] == [0, 1]
        assert len(curve["logit"]) == 2


def test_a_sample_none_of_whose_tokens_may_go_is_a_reject_of_every_method(attempts):
    view = tiny_model("bert")
    rows = rows_of(view)
    rows[0]["scope_mask"] = [False] * len(rows[0]["input_ids"])
    drawn = drawn_by(drawing_of(view, rows), rows, attempts)
    for method in VARIANTS:
        assert [(r.sample_id, r.reason) for r in drawn.rejects[method]] == [("s0", "nothing_to_flip")]
        assert set(drawn.table(method)["sample_id"].to_pylist()) == {"s1", "s2", "s3"}


def test_a_sample_that_a_method_rejected_is_missing_from_its_curves_alone(attempts):
    view = tiny_model("gpt2")
    rows = rows_of(view)
    claims = dict(drawing_of(view, rows).claims)
    claims["lrp"] = {name: sample_claims for name, sample_claims in claims["lrp"].items() if name != "s2"}
    drawn = drawn_by(drawing_of(view, rows, claims), rows, attempts)
    assert [(r.sample_id, r.reason) for r in drawn.rejects["lrp"]] == [("s2", "no_relevance")]
    assert not drawn.rejects["random"]
    assert "s2" in drawn.table("random")["sample_id"].to_pylist()


def test_relevance_of_another_logit_is_a_reject_and_no_curve(attempts):
    view = tiny_model("gpt2")
    rows = rows_of(view)
    drawing = drawing_of(view, rows)
    elsewhere = [{**row, "target_id": (row["target_id"] + 1) % view.vocab} for row in rows]
    drawn = drawn_by(drawing, elsewhere, attempts)
    assert {r.reason for r in drawn.rejects["lrp"]} == {"other_logit"}
    assert drawn.table("lrp").num_rows == 0


def test_a_row_that_raises_is_a_reject_and_the_others_are_drawn(attempts):
    view = tiny_model("gpt2")
    rows = rows_of(view)
    whole = drawn_by(drawing_of(view, rows), rows, attempts)
    drawing = drawing_of(view, rows)
    broken = [dict(row) for row in rows]
    broken[1]["input_ids"] = [view.vocab + 3] * len(rows[1]["input_ids"])
    drawn = drawn_by(drawing, broken, attempts)
    for method in VARIANTS:
        assert [(r.sample_id, r.reason) for r in drawn.rejects[method]] == [("s1", "model_error")]
        expected = [row for row in whole.table(method).to_pylist() if row["sample_id"] != "s1"]
        result = drawn.table(method).to_pylist()
        assert [row["sample_id"] for row in result] == [row["sample_id"] for row in expected]
        np.testing.assert_allclose([row["area"] for row in result], [row["area"] for row in expected], rtol=1e-9)


def test_out_of_memory_halves_and_a_row_that_never_fits_is_a_reject(attempts, monkeypatch):
    view, all_logits = tiny_model("gpt2"), ModelView.all_logits
    rows = rows_of(view)

    def scarce(limit):
        def run(self, batch):
            if batch.input_ids.numel() > limit:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return all_logits(self, batch)

        return run

    drawing = drawing_of(view, rows)
    drawing = replace(drawing, ways=drawing.ways[:1])
    whole = drawn_by(drawing, rows, attempts)
    monkeypatch.setattr(ModelView, "all_logits", scarce(30))
    halved = drawn_by(drawing, rows, attempts)
    assert halved.splits > 0
    assert not any(halved.rejects.values())
    areas = [[row["area"] for row in drawn.table("lrp").to_pylist()] for drawn in (whole, halved)]
    np.testing.assert_allclose(*areas, rtol=1e-9)
    monkeypatch.setattr(ModelView, "all_logits", scarce(9))
    drawn = drawn_by(drawing, rows, attempts)
    assert [(r.sample_id, r.reason) for r in drawn.rejects["lrp"]] == [("s2", "out_of_memory")]


def test_relevance_and_logits_that_are_not_finite_are_kept_as_no_number(attempts):
    view = tiny_model("gpt2")
    rows = rows_of(view, (5,))
    drawing = drawing_of(view, rows)
    first, *others = drawing.claims["lrp"]["s0"]
    broken = replace(first, relevance=np.where(np.arange(5) == 2, np.nan, first.relevance))
    drawing = replace(drawing, claims={**drawing.claims, "lrp": {"s0": [broken, *others]}})
    table = drawn_by(drawing, rows, attempts).table("lrp").to_pylist()
    broken = [row for row in table if row["explanation"] == "contrastive"]
    others = [row for row in table if row["explanation"] == "target"]
    assert broken
    assert all(np.isnan(row["logit"]).all() and np.isnan(row["area"]) for row in broken)
    assert all(row["correct"] == [None] * 6 for row in broken)
    assert all(np.isfinite(row["area"]) for row in others)


def test_curves_fit_their_schema(attempts):
    view = tiny_model("gpt2")
    rows = rows_of(view)
    assert drawn_by(drawing_of(view, rows), rows, attempts).table("lrp").schema == CURVES
