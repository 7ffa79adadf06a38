"""Attribution, on a real local Ray where processes of its are killed: the relevance is that of an undisturbed run."""

import errno
import os
import signal
from pathlib import Path

import pytest
import torch

from closelook.evaluation.schema import REJECT, RUNTIME
from closelook.jobs.cluster.executor import executed_by
from closelook.jobs.config import MethodConfig
from closelook.jobs.plan.cells import make_plan
from closelook.jobs.runner import driver as stage
from closelook.jobs.runner.worker import Worker
from closelook.jobs.store import Ledger
from tests.jobs.inline import Unused, without_ray
from tests.jobs.small import VOCABULARY, config_of, prepared, relevance_of, rows_of, save_model
from tests.stages import attribute

ROWS = rows_of(20)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, model):
    """(config, store, relevance) of a run without Ray in which nothing went wrong."""
    config = config_of(tmp_path_factory.mktemp("undisturbed"), model, heads={"sva": 5})
    store = prepared(config, ROWS)
    with without_ray():
        summary = attribute(config, store)
    assert summary.complete
    assert summary.computed == 5
    return config, store, relevance_of(config, store)


@pytest.fixture
def again(tmp_path, model):
    """A fresh root for the same run."""
    config = config_of(tmp_path / "root", model, heads={"sva": 5})
    return config, prepared(config, ROWS)


def test_a_run_explains_every_row_once_under_every_variant(undisturbed):
    explains_every_row_once(*undisturbed)


def explains_every_row_once(config, store, relevance):
    """Asserts it of a run that is complete."""
    table = relevance["relevance gpt2/sva/float32/attnlrp"]
    ids = sorted(row["sample_id"] for row in ROWS)
    assert sorted(table["sample_id"].to_pylist()) == sorted(ids * 4)
    lengths = {row["sample_id"]: row["length"] for row in ROWS}
    assert all(len(row["relevance"]) == lengths[row["sample_id"]] for row in table.to_pylist())
    heads = relevance["heads gpt2/sva/float32/attnlrp"]
    assert heads.num_rows == 5 * 2 * 3, "samples, explanations, poolings"
    runtime = store.read(store.runtime("gpt2", "sva", "float32"), RUNTIME)
    assert set(runtime["method"].to_pylist()) == {"gradients", "random", "attnlrp", "gradient_x_input"}
    record = store.manifest(next(make_plan(config, store).cells()).artifact.name)
    assert record["explained"] == record["rows"] == 20
    assert record["rejects"] == {}


def test_a_finished_run_does_nothing(undisturbed):
    config, store, _ = undisturbed
    with executed_by(Unused()):
        summary = attribute(config, store)
    assert (summary.computed, summary.skipped) == (0, 5)


def test_an_added_method_is_all_that_is_computed(undisturbed, inline):
    config, store, relevance = undisturbed
    before = set(store.files("relevance", recursive=True))
    more = config.model_copy(update={"methods": (*config.methods, MethodConfig(name="lrp", method="lrp"))})
    assert attribute(more, store).computed == 2, "relevance and heads of lrp"
    added = set(store.files("relevance", recursive=True)) - before
    assert added
    assert all("method=lrp" in path for path in added)
    assert relevance_of(config, store) == relevance


def test_a_row_that_raises_is_rejected_and_the_others_are_as_if_it_were_well(undisturbed, again, inline):
    config, store = again
    poisoned = [dict(row) for row in ROWS]
    poisoned[3]["input_ids"] = [VOCABULARY + 1, *ROWS[3]["input_ids"][1:]]
    prepared(config, poisoned)
    assert attribute(config, store).complete
    for name, table in relevance_of(config, store).items():
        expected = [row for row in undisturbed[2][name].to_pylist() if row["sample_id"] != "s003"]
        for row, other in zip(table.to_pylist(), expected, strict=True):
            assert row["sample_id"] == other["sample_id"]
            assert row["relevance"] == pytest.approx(other["relevance"], abs=1e-6), "batches are smaller: rounding"
    cell = next(make_plan(config, store).cells()).artifact
    assert store.manifest(cell.name)["rejects"] == {"model_error": 1}
    (reject,) = store.read(cell.rejects, REJECT).to_pylist()
    assert reject["sample_id"] == "s003"
    assert "index out of range" in reject["detail"]


def test_a_row_that_kills_its_process_is_given_up_after_a_few_attempts(
    undisturbed, again, model, monkeypatch, restarted
):
    class Deadly(Worker):
        def __call__(self, table):
            from closelook.jobs.products.explaining import Explainer

            whole = Explainer.batch

            def batch(explainer, rows):
                if any(row["sample_id"] == "s003" for row in rows):
                    os.kill(os.getpid(), signal.SIGKILL)
                return whole(explainer, rows)

            Explainer.batch = batch
            return super().__call__(table)

    monkeypatch.setattr(stage, "Worker", Deadly)
    config, store = again
    prepared(config, ROWS[:6])
    config = config_of(config.root, model, max_attempts=1, methods=["gradient_x_input"])
    assert attribute(config, store).complete
    cell = next(make_plan(config, store).cells()).artifact
    assert store.manifest(cell.name)["rejects"] == {"ended_worker": 1}
    assert store.files("attempts", ".json") == []
    (name,) = relevance = relevance_of(config, store)
    expected = {(r["sample_id"], r["explanation"], r["embedding"]): r for r in undisturbed[2][name].to_pylist()}
    for row in relevance[name].to_pylist():
        reference = expected[row["sample_id"], row["explanation"], row["embedding"]]
        assert row["relevance"] == pytest.approx(reference["relevance"], rel=1e-5, abs=1e-5)
    assert relevance[name].num_rows == 5 * 4


def test_rejects_of_an_attempt_that_was_killed_are_those_of_no_cell(again, monkeypatch, tmp_path, restarted):
    """One row runs out of memory, then the process is killed before the unit's shards are; the retry explains it."""
    mark = tmp_path / "killed"

    class Killed(Worker):
        def __call__(self, table):
            import closelook.jobs.store.files
            from closelook.jobs.products.explaining import Explainer

            whole, write = Explainer.batch, closelook.jobs.store.files._write_local

            def batch(explainer, rows):
                if any(row["sample_id"] == "s003" for row in rows) and not mark.exists():
                    raise MemoryError("DefaultCPUAllocator: can't allocate memory")
                return whole(explainer, rows)

            def dying(target, data):
                if "/relevance/model=" in target and not mark.exists():
                    mark.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                write(target, data)

            Explainer.batch, closelook.jobs.store.files._write_local = batch, dying
            return super().__call__(table)

    config, store = again
    config = config.model_copy(update={"shard_rows": 64})  # one unit, which holds the row
    monkeypatch.setattr(stage, "Worker", Killed)
    assert attribute(config, store).complete
    assert mark.exists()
    for planned in make_plan(config, store).cells():
        if planned.artifact.product == "relevance":  # the unit of heads may come first, and is not killed
            record = store.manifest(planned.artifact.name)
            assert (record["explained"], record["rejects"]) == (planned.samples, {})
    assert store.files("relevance/rejects", recursive=True) == []


def test_out_of_memory_halves_a_batch_and_goes_on(undisturbed, again, inline, monkeypatch):
    from closelook.jobs.products.explaining import Explainer

    whole = Explainer.batch

    def small(explainer, rows):
        if len(rows) * max(len(row["input_ids"]) for row in rows) > 50:
            torch.empty(1 << 55)  # more than any machine has: what the allocator raises is real
        return whole(explainer, rows)

    monkeypatch.setattr(Explainer, "batch", small)
    config, store = again
    assert attribute(config, store).complete
    assert store.manifest(next(make_plan(config, store).cells()).artifact.name)["fallbacks"]["batches_halved"] > 0
    for name, table in relevance_of(config, store).items():
        expected = undisturbed[2][name].to_pylist()
        assert [row["sample_id"] for row in table.to_pylist()] == [row["sample_id"] for row in expected]
        for row, reference in zip(table.to_pylist(), expected, strict=True):
            assert row["relevance"] == pytest.approx(reference["relevance"], rel=1e-5, abs=1e-5)


def test_a_model_that_cannot_be_loaded_fails_its_own_cells_and_no_others(
    undisturbed, tmp_path, model, closelook, inline
):
    broken = save_model(tmp_path / "broken")
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-50])
    config = config_of(tmp_path / "root", broken, model, heads={"sva": 5})
    store = prepared(config, ROWS)
    (tmp_path / "small.yaml").write_text(config.model_dump_json())
    code, out, err = closelook("attribute", "--config", str(tmp_path / "small.yaml"))
    assert code == 1
    assert "attribute: 5 computed, 0 up to date" in out
    assert "5 cells are not complete, among them" in out
    (failure,) = [line for line in err.splitlines() if "cannot be loaded" in line]
    assert failure.strip().startswith("model broken cannot be loaded: ")
    states = {str(p.artifact): Ledger(store).state(p.artifact) for p in make_plan(config, store).cells()}
    assert {name for name, state in states.items() if state == "done"} == set(undisturbed[2])
    healthy = config.model_copy(update={"models": config.models[1:]})
    assert relevance_of(healthy, store) == undisturbed[2]


def test_a_full_disk_ends_the_run_with_a_clear_line_and_the_next_run_completes_it(
    undisturbed, again, inline, monkeypatch
):
    import closelook.jobs.store.files

    write = closelook.jobs.store.files._write_local

    def full(target, data):
        if "attnlrp" in target:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(target, data)

    config, store = again
    with monkeypatch.context() as patch:
        patch.setattr(closelook.jobs.store.files, "_write_local", full)
        summary = attribute(config, store)
    assert len(summary.failures) == 1
    assert f"no space left under {store.root}" in summary.failures[0]
    assert not any("attnlrp" in path for path in store.files("relevance", recursive=True))
    assert attribute(config, store).complete
    assert relevance_of(config, store) == undisturbed[2]


@pytest.mark.ray
def test_a_worker_killed_in_a_batch_costs_nothing(undisturbed, again, monkeypatch, tmp_path, local_ray):
    """No row is lost or comes twice."""
    config, store = again
    killed = tmp_path / "killed"
    committed = Path(config.root) / "relevance"

    class Ended(Worker):
        def _open(self, dtype):
            view = super()._open(dtype)

            def die(*_):  # between the forward pass and the backward pass
                if any(committed.rglob("*.parquet")) and not killed.exists():
                    killed.touch()
                    os.kill(os.getpid(), signal.SIGKILL)

            view.model.transformer.h[0].register_forward_hook(die)
            return view

    monkeypatch.setattr(stage, "Worker", Ended)
    summary = attribute(config, store)
    assert (summary.complete, summary.computed) == (True, 5)
    assert killed.exists()
    relevance = relevance_of(config, store)
    explains_every_row_once(config, store, relevance)
    assert relevance == undisturbed[2]
