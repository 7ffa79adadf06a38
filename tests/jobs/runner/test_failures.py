"""Failures of methods, rows, models and devices stay where they happened."""

from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from closelook.evaluation.schema import REJECT, RUNTIME, SCORES
from closelook.jobs.plan.cells import make_plan
from closelook.jobs.products.explaining import Explainer
from closelook.jobs.runner import driver as stage
from closelook.jobs.runner.worker import Worker
from closelook.jobs.stages.report import report
from closelook.jobs.store import Ledger
from closelook.lrp_core import random_model
from closelook.lrp_core.device.memory import PeakBytes, _StorageMeter
from closelook.lrp_core.methods.record import Method
from tests.jobs.inline import without_ray
from tests.jobs.small import VOCABULARY, config_of, prepared, relevance_of, rows_of, save_model
from tests.stages import attribute, evaluate

ROWS = rows_of(20)
METHODS = ["attnlrp", "lrp", "gradient_x_input", "alti_logit", "random"]
PLACE = "relevance sva/float32"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, model):
    """The relevance of every method."""
    config, store = run_of(tmp_path_factory.mktemp("undisturbed"), model)
    with without_ray():
        assert attribute(config, store).complete
    return relevance_of(config, store)


def run_of(root, model, rows=ROWS, **changes):
    config = config_of(root, model, **{"methods": METHODS, **changes})
    return config, prepared(config, rows)


def states(config, store):
    return {
        planned.artifact.method: Ledger(store).state(planned.artifact) for planned in make_plan(config, store).cells()
    }


def manifests(config, store):
    return {
        planned.artifact.method: store.manifest(planned.artifact.name) for planned in make_plan(config, store).cells()
    }


def assert_same(result, expected, *methods):
    """To rounding: which methods share a pass, and which rows a batch, may change the last bit."""
    expected = {name: table for name, table in expected.items() if name.rpartition("/")[2] in methods}
    assert result.keys() == expected.keys()
    for name, table in result.items():
        for row, expected_row in zip(table.to_pylist(), expected[name].to_pylist(), strict=True):
            numbers = {"relevance", "explained", "residual", "logit_target", "logit_foil"}
            assert all(row[key] == expected_row[key] for key in row.keys() - numbers)
            for key in ("relevance", "logit_target", "logit_foil"):
                assert row[key] == pytest.approx(expected_row[key], rel=1e-5, abs=1e-6)


def fail(monkeypatch, why):
    """Whatever computes methods first asks `why(methods, batch)`, which raises or lets it pass."""
    whole = Method.compute

    def compute(method, view, batch, requests, **settings):
        why({request.method for request in requests}, batch)
        return whole(method, view, batch, requests, **settings)

    monkeypatch.setattr(Method, "compute", compute)


def three_methods(methods, batch):
    """The pass of `lrp` serves other methods too; `random` fails on one row."""
    if "lrp" in methods:
        raise TypeError("an activation without a rule")
    if "alti_logit" in methods:
        raise RuntimeError("expected BFloat16, found Float")
    if "random" in methods and 42 in batch.input_ids:
        raise ValueError("bad luck")


def test_what_fails_in_one_method_or_row_leaves_the_other_cells_complete(
    inline, tmp_path, model, monkeypatch, closelook
):
    rows = [{**row, "input_ids": [{42: 43}.get(i, i) for i in row["input_ids"]]} for row in ROWS]
    rows[3]["input_ids"][0] = 42
    config, store = run_of(tmp_path / "root", model, rows)
    (tmp_path / "small.yaml").write_text(config.model_dump_json())
    arguments = ("attribute", "--config", str(tmp_path / "small.yaml"))
    with monkeypatch.context() as patch:
        fail(patch, three_methods)
        code, out, err = closelook(*arguments)
    assert (code, "3 computed" in out) == (1, True)
    assert [line.strip() for line in err.splitlines()] == [
        f"model gpt2: lrp failed on {PLACE}: TypeError: an activation without a rule (sample s009 and 4 others)",
        f"model gpt2: alti_logit failed on {PLACE}: every row of a unit failed, sample s009 and 4 others: "
        "RuntimeError: expected BFloat16, found Float",
    ]
    failed = {"lrp": "missing", "alti_logit": "missing"}
    assert states(config, store) == dict.fromkeys(METHODS, "done") | failed
    shards = store.files("relevance", recursive=True)
    assert not any(f"method={method}/" in path for path in shards for method in failed)
    assert "relevance gpt2/sva/float32: rejected 1 model_error, as s003: ValueError: bad luck (random)" in out
    result = manifests(config, store)
    assert result["random"]["rejects"] == {"model_error": 1}
    assert result["attnlrp"]["rejects"] == result["gradient_x_input"]["rejects"] == {}
    evaluated = evaluate(config, store)
    assert (evaluated.computed, evaluated.failures) == (3, ()), "what is healthy has scores"
    assert set(store.read("scores", SCORES)["method"].to_pylist()) == set(METHODS) - set(failed)
    well, fresh = run_of(tmp_path / "well", model, rows)
    assert attribute(well, fresh).complete
    whole = relevance_of(well, fresh)
    kept = [method for method in METHODS if method not in failed and method != "random"]
    assert_same(relevance_of(config_of(config.root, model, methods=kept), store), whole, *kept)
    timed = methods_timed(store)

    code, out, _ = closelook(*arguments)
    assert (code, "2 computed, 3 up to date" in out) == (0, True), "the next run tries again what failed, and only that"
    assert timed < methods_timed(store), "earlier timings stay"
    assert_same(relevance_of(config_of(config.root, model, methods=METHODS[:4]), store), whole, *METHODS[:4])


def methods_timed(store):
    return set(store.read(store.runtime("gpt2", "sva", "float32"), RUNTIME)["method"].to_pylist())


def test_a_byte_budget_too_small_ends_its_method_and_no_other(undisturbed, tmp_path, model, inline):
    config, store = run_of(tmp_path / "root", model, byte_budget=1)
    summary = attribute(config, store)
    assert summary.computed == 4
    (failure,) = summary.failures
    assert failure.startswith(f"model gpt2: alti_logit failed on {PLACE}: ALTI needs ")
    assert failure.endswith("raise byte_budget or drop the longest samples")
    assert states(config, store) == dict.fromkeys(METHODS, "done") | {"alti_logit": "missing"}
    assert attribute(config.model_copy(update={"byte_budget": None}), store).computed == 1
    assert relevance_of(config, store) == undisturbed


def test_a_model_that_gives_nan_fails_its_own_cells_and_says_so(inline, tmp_path, model, closelook):
    broken = save_model(tmp_path / "broken")
    weights = load_file(broken / "model.safetensors")
    weights["transformer.ln_f.weight"] = torch.full_like(weights["transformer.ln_f.weight"], torch.nan)
    save_file(weights, broken / "model.safetensors", {"format": "pt"})
    config = config_of(tmp_path / "root", broken, model, methods=["attnlrp", "random"])
    store = prepared(config, ROWS)
    summary = attribute(config, store)
    (failure,) = summary.failures
    assert failure == (
        "model broken: attnlrp, random failed on relevance sva/float32: "
        "every row of a unit failed, sample s009 and 4 others: the model's logits are not finite in float32"
    )
    assert summary.computed == 2
    plan = {
        (p.artifact.model, p.artifact.method): Ledger(store).state(p.artifact) for p in make_plan(config, store).cells()
    }
    assert {cell for cell, now in plan.items() if now == "done"} == {("gpt2", "attnlrp"), ("gpt2", "random")}
    assert evaluate(config, store).computed == 2
    assert report(config, store).complete
    code, _, err = closelook("explain", "--model", str(broken), "w5 w7", "--target", "w10", "--foil", "w11")
    assert code == 2
    assert "broken: the model's logits are not finite in float32" in err


@pytest.fixture
def unlucky(inline, monkeypatch):
    """The gradients of rows s000 to s003 fail."""
    whole = Explainer.batch

    def batch(explainer, rows):
        gradients = any(request.method == "attnlrp" for request in explainer.requests)
        if gradients and any(row["sample_id"] < "s004" for row in rows):
            raise IndexError("index out of range in self")
        return whole(explainer, rows)

    monkeypatch.setattr(Explainer, "batch", batch)
    return lambda: monkeypatch.setattr(Explainer, "batch", whole)


def test_a_cell_of_which_too_many_rows_failed_is_incomplete_and_tried_again(undisturbed, unlucky, tmp_path, model):
    config, store = run_of(tmp_path / "root", model, methods=["attnlrp", "random"])
    summary = attribute(config, store)
    (failure,) = summary.failures
    assert failure.startswith("relevance gpt2/sva/float32/attnlrp: 4 of 20 rows failed (4 model_error, as s00")
    assert failure.endswith("more than max_failed_share: 0.05 allows; the next run tries them again")
    assert any("rejected 4 model_error, as s00" in line for line in summary.lines)
    assert states(config, store) == {"attnlrp": "partial", "random": "done"}
    cell = next(make_plan(config, store).cells()).artifact
    rejects = store.read(cell.rejects, REJECT).to_pylist()
    assert {reject["sample_id"] for reject in rejects} == {"s000", "s001", "s002", "s003"}
    before = {path: store.modified_s(path) for path in store.files(cell.folder)}

    unlucky()
    assert attribute(config, store).complete
    assert_same(relevance_of(config, store), undisturbed, "attnlrp", "random")
    kept = [path for path in before if store.modified_s(path) == before[path]]
    assert 0 < len(kept) < len(before), "units without a failure are not computed again"


def test_a_cell_that_lost_a_row_without_a_reject_is_not_complete(inline, tmp_path, model, monkeypatch):
    whole = Explainer.batch

    def losing(explainer, rows):
        """Says nothing of s003."""
        explained = whole(explainer, rows)
        kept = [at for at, row in enumerate(explained.rows) if row["sample_id"] != "s003"]
        relevance = {
            request: values.mapped(lambda tensor: tensor[kept]) for request, values in explained.relevance.items()
        }
        return replace(explained, rows=tuple(explained.rows[at] for at in kept), relevance=relevance)

    monkeypatch.setattr(Explainer, "batch", losing)
    config, store = run_of(tmp_path, model, methods=["attnlrp"])
    assert attribute(config, store).failures == ("relevance gpt2/sva/float32/attnlrp",)
    assert states(config, store) == {"attnlrp": "partial"}


@pytest.mark.parametrize(("rows", "share"), [(ROWS[1:], 0.0), (ROWS, 0.2)])
def test_three_rows_may_fail_and_so_may_the_configured_share(rows, share, unlucky, tmp_path, model):
    config, store = run_of(tmp_path, model, rows, methods=["attnlrp"], max_failed_share=share)
    summary = attribute(config, store)
    assert summary.complete, summary.failures
    assert manifests(config, store)["attnlrp"]["rejects"] == {"model_error": len(rows) - 16}


def test_a_cell_of_few_rows_that_all_fail_is_not_complete(unlucky, tmp_path, model):
    config, store = run_of(tmp_path, model, ROWS[:3], methods=["attnlrp"])
    assert "3 of 3 rows failed" in attribute(config, store).failures[0]
    assert states(config, store) == {"attnlrp": "partial"}
    unlucky()
    assert attribute(config, store).complete


class Poisoned(Worker):
    """After one bad row the device is gone, as after a device-side assert: every later call of the process fails."""

    def __call__(self, table):
        from closelook.jobs.products.explaining import Explainer

        whole = Explainer.batch
        if not getattr(self, "patched", False):
            self.patched, self.lost = True, False

            def batch(explainer, rows):
                if self.lost or any(row["sample_id"] == "s003" for row in rows):
                    self.lost = True
                    raise torch.AcceleratorError("CUDA error: device-side assert triggered")
                return whole(explainer, rows)

            Explainer.batch = batch
        return super().__call__(table)


def test_a_lost_device_ends_its_process_and_costs_the_row_that_broke_it(
    undisturbed, tmp_path, model, monkeypatch, restarted
):
    monkeypatch.setattr(stage, "Worker", Poisoned)
    config, store = run_of(tmp_path, model, ROWS[:6], methods=["attnlrp", "random"], max_attempts=1)
    summary = attribute(config, store)
    assert summary.complete, summary.failures
    for method, record in manifests(config, store).items():
        assert (record["explained"], record["rejects"]) == (5, {"ended_worker": 1}), method
        assert "CUDA error: device-side assert triggered" in record["examples"]["ended_worker"]
    rest = pa.array([row["sample_id"] for row in ROWS[:6] if row["sample_id"] != "s003"])
    healthy = {name: table.filter(pc.is_in(table["sample_id"], rest)) for name, table in undisturbed.items()}
    assert_same(relevance_of(config, store), healthy, "attnlrp", "random")


def test_a_row_without_a_foil_has_nothing_to_contrast_and_is_a_reject_of_no_failure(tmp_path, model, inline):
    rows = [{**row, "foil_id": None} for row in ROWS[:10]] + ROWS[10:]
    config, store = run_of(tmp_path, model, rows, methods=["attnlrp", "random"], explanations=["contrastive"])
    assert attribute(config, store).complete
    states = manifests(config, store)
    assert states["attnlrp"]["rejects"] == {"no_foil": 10}
    assert states["random"]["rejects"] == {}


class Capped(_StorageMeter):
    """Memory that holds `cap` bytes of tensors at once."""

    def __init__(self, cap=float("inf")):
        super().__init__(PeakBytes())
        self.cap = cap

    def _count(self, storage):
        super()._count(storage)
        if self.peak.live_bytes > self.cap:
            raise torch.OutOfMemoryError(f"CUDA out of memory: {self.peak.live_bytes} bytes live")


@pytest.mark.thinned(2)
@pytest.mark.parametrize("method", ["attnlrp", "attnlrp_explicit"])
@pytest.mark.parametrize("share", [0.6, 0.9])
def test_a_batch_that_runs_out_of_memory_is_halved_once_its_graph_is_gone(share, method, inline, tmp_path, monkeypatch):
    sizes = {"n_layer": 4, "n_head": 2, "n_embd": 32, "n_positions": 32, "vocab_size": VOCABULARY}
    directory = save_model(tmp_path / "gpt2")
    random_model(AutoConfig.for_model("gpt2", **sizes)).model.save_pretrained(directory)
    rows = [{**ROWS[0], "sample_id": f"s{i:03d}", "input_ids": [4 + i] * 24, "position": 23} for i in range(16)]
    masks = {"evidence_mask": [True] * 24, "special_mask": [False] * 24, "length": 24}
    rows = [row | masks for row in rows]
    whole = Explainer.batch

    def run(name, memory):
        def batch(explainer, rows):
            with memory:
                return whole(explainer, rows)

        monkeypatch.setattr(Explainer, "batch", batch)
        config, store = run_of(tmp_path / name, directory, rows, methods=[method], token_budget=1024, shard_rows=64)
        summary = attribute(config, store)
        return summary, manifests(config, store)[method]

    memory = Capped()
    assert run("plenty", memory)[0].complete
    summary, record = run("scarce", Capped(share * memory.peak.peak_bytes))
    assert summary.complete, summary.failures
    assert (record["explained"], record["rejects"]) == (16, {})
    assert record["fallbacks"]["batches_halved"] > 0
