"""Batches in which a row fails or memory runs out."""

from dataclasses import replace

import pytest
import torch

from closelook.jobs.products.explaining import Explainer
from closelook.jobs.products.relevance_tables import cell_table
from closelook.jobs.runner.rows import describe
from closelook.lrp_core import Request, random_model
from tests.jobs.computing import Explained
from tests.jobs.computing import explained as run
from tests.jobs.small import VOCABULARY, rows_of
from tests.tiny import tiny_config

REQUESTS = (Request("attnlrp", "contrastive", "full"), Request("random", "none", "none"))


@pytest.fixture
def explainer() -> Explainer:
    return Explainer(random_model(tiny_config("gpt2", vocab_size=VOCABULARY), 0), REQUESTS)


def tables_of(outcome: Explained, requests=REQUESTS) -> dict:
    table, rejects = cell_table("relevance", "float32", requests, outcome.explained)
    return {(row["sample_id"], row["embedding"]): row for row in table.to_pylist()}, rejects


def assert_same(result, expected):
    """To rounding, which depends on what shares a batch."""
    assert result.keys() == expected.keys()
    for key, row in result.items():
        assert row["relevance"] == pytest.approx(expected[key]["relevance"], rel=1e-5, abs=1e-5)


def test_a_row_that_raises_is_rejected_and_its_neighbours_keep_their_numbers(explainer):
    rows = rows_of(6)
    longest = max(range(6), key=lambda i: rows[i]["length"])
    undisturbed, _ = tables_of(run(explainer, rows))
    for bad in (0, longest):
        poisoned = [dict(row) for row in rows]
        poisoned[bad]["input_ids"] = [VOCABULARY + 7, *rows[bad]["input_ids"][1:]]
        outcome = run(explainer, poisoned)
        assert [(r.sample_id, r.reason) for r in outcome.rejects] == [(rows[bad]["sample_id"], "model_error")]
        result, _ = tables_of(outcome)
        assert_same(result, {key: row for key, row in undisturbed.items() if key[0] != rows[bad]["sample_id"]})


def test_a_row_whose_logits_are_not_finite_is_rejected_with_that_reason(explainer):
    broken = VOCABULARY - 1
    rows = [
        {**row, "input_ids": [min(token, broken - 1) for token in row["input_ids"]], "target_id": 5, "foil_id": 6}
        for row in rows_of(6)
    ]
    rows[3]["input_ids"][0] = broken
    undisturbed, _ = tables_of(run(explainer, rows))
    explainer.view.token_embedding.weight.data[broken] = torch.nan
    outcome = run(explainer, rows)
    (reject,) = outcome.rejects
    assert (reject.sample_id, reject.reason) == (rows[3]["sample_id"], "logits_not_finite")
    assert reject.detail == "the model's logits are not finite in float32"
    result, _ = tables_of(outcome)
    assert_same(result, {key: row for key, row in undisturbed.items() if key[0] != reject.sample_id})


def test_a_batch_of_bad_rows_only_is_all_rejects(explainer):
    rows = [{**row, "input_ids": [VOCABULARY + 7] * row["length"]} for row in rows_of(3)]
    outcome = run(explainer, rows)
    assert outcome.explained == []
    assert len(outcome.rejects) == 3


def test_out_of_memory_halves_the_batch(explainer, monkeypatch):
    rows = rows_of(7)
    undisturbed, _ = tables_of(run(explainer, rows))
    whole = Explainer.batch

    def limited(self, batch):
        if len(batch) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return whole(self, batch)

    monkeypatch.setattr(Explainer, "batch", limited)
    outcome = run(explainer, rows)
    result, _ = tables_of(outcome)
    assert outcome.splits == 3
    assert_same(result, undisturbed)


def test_a_row_too_large_for_memory_is_rejected_as_such(explainer, monkeypatch):
    def hungry(self, batch):
        raise MemoryError

    monkeypatch.setattr(Explainer, "batch", hungry)
    assert [r.reason for r in run(explainer, rows_of(3)).rejects] == ["out_of_memory"] * 3


def test_numbers_that_are_not_finite_are_rejected_by_the_cell(explainer):
    outcome = run(explainer, rows_of(4))
    outcome.explained[0].relevance[REQUESTS[0]].tokens[1, 0] = float("nan")
    table, rejects = cell_table("relevance", "float32", REQUESTS[:1], outcome.explained)
    assert [(r.sample_id, r.reason) for r in rejects] == [("s001", "not_finite")]
    assert table.num_rows == 3
    assert cell_table("relevance", "float32", REQUESTS[1:], outcome.explained)[1] == []


def test_a_peak_that_is_not_finite_is_rejected_and_a_large_one_is_kept(explainer):
    outcome = run(Explainer(explainer.view, REQUESTS[:1], product="neurons"), rows_of(3))
    peaks = outcome.explained[0].relevance[REQUESTS[0]].peaks
    outcome.explained[0].relevance[REQUESTS[0]] = replace(
        outcome.explained[0].relevance[REQUESTS[0]], peaks=peaks.double().index_fill(0, torch.tensor([0]), 1e200)
    )
    outcome.explained[0].relevance[REQUESTS[0]].peaks[2, 0] = float("inf")
    table, rejects = cell_table("neurons", "float64", REQUESTS[:1], outcome.explained)
    assert [(r.sample_id, r.reason) for r in rejects] == [("s002", "not_finite")]
    assert table["peaks"][0].as_py() == [1e200] * peaks.shape[1]


def test_samples_without_a_foil_get_the_explanations_that_need_none(explainer):
    rows = [{**row, "foil_id": None} for row in rows_of(3)]
    requests = (*REQUESTS, Request("attnlrp", "target", "full"))
    outcome = run(Explainer(explainer.view, requests), rows)
    assert set(outcome.explained[0].relevance) == {requests[1], requests[2]}


def test_passes_get_only_the_options_they_know(explainer):
    settings = {"checkpoint": True, "byte_budget": 1, "seed": 5}
    seeded = Explainer(explainer.view, REQUESTS, settings=settings).batch(rows_of(2))
    plain = explainer.batch(rows_of(2))
    assert not torch.equal(seeded.relevance[REQUESTS[1]].tokens, plain.relevance[REQUESTS[1]].tokens)
    assert describe(ValueError("a\n b")) == "ValueError: a b"


def test_stages_of_a_pass_add_up_and_memory_is_measured_once_a_length(explainer):
    first, second = explainer.batch(rows_of(3)), explainer.batch(rows_of(3))
    seconds = {(timing.method, timing.stage): timing.wall_s for timing in first.timings}
    stages = {("gradients", "forward"), ("attnlrp", "backward"), ("attnlrp", "aggregate")}
    assert set(seconds) == {("gradients", "method"), ("random", "method"), *stages}
    assert 0 < sum(seconds[stage] for stage in stages) <= seconds["gradients", "method"]
    peaks = {timing.method: timing.peak_bytes for timing in first.timings if timing.stage == "method"}
    blocks = explainer.view.n_layers * first.relevance[REQUESTS[0]].tokens[0].numel() * explainer.view.d_model * 4
    assert peaks["gradients"] > blocks, "the graph keeps more than one state of each block"
    assert all(timing.peak_bytes is None for timing in second.timings)


def test_rows_without_a_target_are_explained_for_the_models_own_prediction(explainer):
    rows = [row | {"target_id": None, "foil_id": None} for row in rows_of(4)]
    explainer = replace(explainer, requests=(Request("attnlrp", "target", "full"),))
    tables, rejects = tables_of(run(explainer, rows), explainer.requests)
    assert not rejects
    for row in rows:
        logits = explainer.view.model(input_ids=torch.tensor([row["input_ids"]])).logits[0, row["position"]]
        assert tables[row["sample_id"], "full"]["logit_target"] == pytest.approx(float(logits.max()), rel=1e-5)
