"""Scores are whole, keyed by content, and computed once."""

from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from closelook.evaluation.report.table import MISSING
from closelook.evaluation.schema import SCORES, SCORES_SAMPLES, VIEW, SchemaMismatch
from closelook.evaluation.scoring.metrics import METRICS, metric
from closelook.evaluation.scoring.samples import VARIANT
from closelook.evaluation.tasks import TASKS
from closelook.jobs.config import RunConfig
from closelook.jobs.plan.node import Run
from closelook.jobs.products import scores as scoring
from closelook.jobs.products.scores import SCORES as SCORES_PRODUCT
from closelook.jobs.runner import driver
from closelook.jobs.stages import report
from closelook.jobs.stages.report.results import results_of
from closelook.jobs.store import Ledger
from closelook.jobs.store.artifacts import views_of
from tests.shown import numbers_of
from tests.stages import missing_work, score_plan
from tests.synthetic import CONFIG, a_cell, a_plan, relevance_rows, write_benchmark, write_cell, write_store

METRIC_OF = {"sva": ("pg", "rma"), "qa": ("mrr",)}


def scores(store):
    return store.read("scores", SCORES).to_pylist()


def test_every_variant_of_every_cell_is_scored_once(tmp_path):
    store, plan = write_store(tmp_path, samples=12)
    summary = score_plan(CONFIG, plan, store)
    assert (summary.computed, summary.skipped, summary.failures) == (8, 0, ())
    rows = scores(store)
    keys = [tuple(row[name] for name in SCORES.names if name not in ("value", "n")) for row in rows]
    assert len(keys) == len(set(keys)) == (2 + 4) * (4 + 2 + 1 + 1) * len(METRICS) + 2 * 4
    assert {row["n"] for row in rows if row["metric"] != "accuracy"} == {9}
    assert {(row["value"], row["n"]) for row in rows if row["metric"] == "accuracy"} == {(75, 12)}
    samples = store.read("scores_samples", SCORES_SAMPLES)
    assert len(samples) == 12 * (2 + 4) * (4 + 2 + 1 + 1)
    assert sum(samples["correct"].to_pylist()) == 9 * 48


def test_scores_that_are_written_part_by_part_are_those_of_the_whole(tmp_path, monkeypatch):
    result, groups = [], []
    for rows_at_once in (scoring.ROWS_AT_ONCE, 1):
        monkeypatch.setattr(scoring, "ROWS_AT_ONCE", rows_at_once)
        store, plan = write_store(tmp_path / str(rows_at_once), tasks=("sva",), methods=("random",), samples=20)
        score_plan(CONFIG, plan, store)
        (file,) = store.files("scores_samples", recursive=True)
        samples = store.read(file, SCORES_SAMPLES).sort_by([(name, "ascending") for name in (*VARIANT, "sample_id")])
        result.append((samples, scores(store)))
        groups.append(pq.ParquetFile(f"{store.root}/{file}").metadata.num_row_groups)
    (samples, means), (parts, merged) = result
    assert groups == [1, 2]
    assert parts.equals(samples)
    assert merged == [{**row, "value": pytest.approx(row["value"], rel=1e-12)} for row in means]


def test_a_new_key_replaces_the_scores(tmp_path):
    store, plan = write_store(tmp_path, tasks=("sva",), methods=("random",), samples=5)
    score_plan(CONFIG, plan, store)
    cell = a_cell(method="random", key="fedcba9876543210")
    views = write_benchmark(store, "sva", 5)
    write_cell(store, cell, relevance_rows(views, "random", seed=1))
    old = scores(store)
    assert score_plan(CONFIG, a_plan(store, [cell]), store).computed == 1
    assert len(scores(store)) == len(old)
    assert scores(store) != old


def test_scores_of_a_run_that_was_stopped_are_not_taken_for_those_of_the_run_before(tmp_path, monkeypatch):
    """The file of scores is named by its place alone: its numbers are those of the run that was stopped."""
    store, plan = write_store(tmp_path, tasks=("sva",), methods=("random",), samples=5)
    score_plan(CONFIG, plan, store)
    for name, record in list(Ledger(store).records("scores")):  # as of files of the same size
        store.write_manifest(name, {key: value for key, value in record.items() if key != "bytes"})
    before = scores(store)
    cell = a_cell(method="random", key="fedcba9876543210")
    write_cell(store, cell, relevance_rows(write_benchmark(store, "sva", 5), "random", seed=1))

    def stop(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "commit", stop)
        with pytest.raises(KeyboardInterrupt):
            score_plan(CONFIG, a_plan(store, [cell]), store)
    assert scores(store) != before, "written, and not entered"
    assert score_plan(CONFIG, plan, store).computed == 1
    assert scores(store) == before


@pytest.fixture
def another_metric(monkeypatch):
    """Declares a metric as a package would; it is gone after the test."""
    monkeypatch.setattr(METRICS, "_added", dict(METRICS))
    monkeypatch.setattr(METRICS, "_owners", dict(METRICS._owners))

    def declare(**settings):
        def longest(block):
            return block.count

        METRICS._added.pop("longest", None)
        return metric("Longest", unit="tokens", **settings)(longest)

    return declare


def test_a_metric_of_a_package_is_in_scores_and_tables_and_makes_older_scores_stale(tmp_path, another_metric):
    store, plan = write_store(tmp_path, samples=8)
    score_plan(CONFIG, plan, store)
    another_metric()
    assert {*results_of(Run(CONFIG, plan, Ledger(store))).states.values()} == {MISSING}, (
        "scores of other metrics are not misread"
    )
    report.write_report(CONFIG, plan, store)
    assert score_plan(CONFIG, plan, store).computed == 8
    assert {row["metric"] for row in scores(store)} == {*METRICS, "accuracy"}
    lengths = [row["value"] for row in scores(store) if row["metric"] == "longest"]
    assert min(lengths) > 1, "in its own unit, not in percent"
    report.write_report(CONFIG, plan, store)
    assert numbers_of(store, "table1_random", group="Longest", label="tokens")
    another_metric(version=2)
    assert score_plan(CONFIG, plan, store).computed == 8


def test_metrics_that_do_not_apply_to_a_task_are_null(tmp_path, another_metric, monkeypatch):
    monkeypatch.setattr(RunConfig, "task", lambda config, name: replace(TASKS[name], metrics=METRIC_OF[name]))
    store, plan = write_store(tmp_path, samples=8)
    assert score_plan(CONFIG, plan, store).complete
    assert {(row["task"], row["metric"]) for row in scores(store) if row["metric"] != "accuracy"} == {
        (task, name) for task, names in METRIC_OF.items() for name in names
    }
    for path in store.files("scores_samples"):
        table = store.read(path, SCORES_SAMPLES)
        [task] = set(table["task"].to_pylist())
        assert {name for name in METRICS if table[name].null_count == 0} == set(METRIC_OF[task])
        assert {table[name].null_count for name in METRICS} == {0, len(table)}
    report.write_report(CONFIG, plan, store)
    assert numbers_of(store, "table1_random", method="AttnLRP")


def test_new_evidence_makes_scores_stale(tmp_path):
    store, plan = write_store(tmp_path, tasks=("sva",), methods=("random",), samples=5)
    score_plan(CONFIG, plan, store)
    path = store.files(views_of("words-0000", "sva").folder)[0]
    rows = store.read(path, VIEW).to_pylist()
    rows[0]["evidence_mask"] = [not marked for marked in rows[0]["evidence_mask"]]
    store.write_shard(path, pa.Table.from_pylist(rows, VIEW), VIEW)
    Ledger(store).commit(views_of("words-0000", "sva"), {"shards": ["0.parquet"], "rows": 5})
    plan = a_plan(store, [cell.artifact for cell in plan.cells()])
    assert score_plan(CONFIG, plan, store).computed == 1


def test_a_partial_cell_is_not_scored(tmp_path):
    store, plan = write_store(tmp_path, tasks=("sva",), methods=("random", "attnlrp"), samples=5)
    score_plan(CONFIG, plan, store)
    cell = a_cell(method="random")
    write_cell(store, cell, list(relevance_rows(write_benchmark(store, "sva", 5), "random"))[:2], state="partial")
    summary = score_plan(CONFIG, plan, store)
    assert "1 cells are not complete" in summary.lines[-1]


def test_a_broken_cell_fails_alone(tmp_path):
    store, plan = write_store(tmp_path, tasks=("sva",), methods=("random", "attnlrp"), samples=5)
    rows = list(relevance_rows(write_benchmark(store, "sva", 5), "random"))
    rows[3]["sample_id"] = "nobody"
    write_cell(store, a_cell(method="random"), rows)
    summary = score_plan(CONFIG, plan, store)
    assert summary.failures == (
        "model gpt2: random failed on scores sva/float32: sample nobody has relevance but no view",
    )
    assert {row["method"] for row in scores(store)} == {"attnlrp"}


def test_defects_are_reported(tmp_path):
    store, plan = write_store(tmp_path, tasks=("sva",), methods=("random",), samples=5)
    rows = list(relevance_rows(write_benchmark(store, "sva", 5), "random"))
    rows[0]["relevance"] = [float("nan")] * len(rows[0]["relevance"])
    write_cell(store, a_cell(method="random"), rows)
    [_, line] = score_plan(CONFIG, plan, store).lines
    assert line.endswith("2 times relevance that is not finite, counted as wrong")


def test_small_cells_share_a_task_and_large_ones_do_not(tmp_path, monkeypatch):
    store, plan = write_store(tmp_path, tasks=("sva",), methods=("attnlrp", "random"), samples=5)
    works = missing_work(CONFIG, Ledger(store), plan, [SCORES_PRODUCT])
    assert [len(chunk) for chunk in driver._chunks(works)] == [2]
    monkeypatch.setattr(driver, "CHUNK_TOKENS", 1)
    assert [len(chunk) for chunk in driver._chunks(works)] == [1, 1]


def test_a_store_of_another_schema_version_is_refused(tmp_path):
    store, plan = write_store(tmp_path, tasks=("sva",), methods=("random",), samples=5)
    old = VIEW.with_metadata({b"closelook.schema": b"view", b"closelook.version": b"0"})
    path = store.files(views_of("words-0000", "sva").folder)[0]
    table = store.read(path, VIEW)
    store.write_shard(path, table, old)
    with pytest.raises(SchemaMismatch, match=r"holds schema view v0, this version of closelook reads view v"):
        score_plan(CONFIG, plan, store)


@pytest.mark.ray
def test_ray_tasks_give_the_scores_of_one_process(tmp_path, monkeypatch, local_ray):
    single, plan = write_store(tmp_path / "one", tasks=("sva",), methods=("attnlrp", "random"), samples=8)
    score_plan(CONFIG, plan, single)
    monkeypatch.setattr(driver, "CHUNK_TOKENS", 100)
    many, plan = write_store(tmp_path / "many", tasks=("sva",), methods=("attnlrp", "random"), samples=8)
    assert score_plan(CONFIG, plan, many).computed == 2
    for actual, expected in zip(scores(many), scores(single), strict=True):
        assert actual == expected | {"value": pytest.approx(expected["value"], rel=1e-6)}  # sums in another order
