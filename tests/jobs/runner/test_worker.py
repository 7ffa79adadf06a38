"""A worker and what follows from its reports, without Ray: commits beside computation, cells closed without reading."""

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

from closelook.jobs.cluster.reports import reports_in
from closelook.jobs.plan.cells import make_plan
from closelook.jobs.plan.inputs import Selected
from closelook.jobs.plan.units import WorkerOptions
from closelook.jobs.runner.worker import Worker
from closelook.jobs.store import Ledger, Store
from tests.jobs.small import config_of, prepared, rows_of
from tests.patience import PATIENCE_S
from tests.stages import attribute, missing_work


def test_cells_are_closed_from_what_workers_report_and_no_shard_is_read_again(tmp_path, model, inline, monkeypatch):
    config = config_of(tmp_path / "root", model)
    store, read, paths = prepared(config, rows_of(24)), Store.read_shard, []

    def noted(store, path, *arguments):
        paths.append(path)
        return read(store, path, *arguments)

    monkeypatch.setattr(Store, "read_shard", noted)
    summary = attribute(config, store)
    assert summary.complete, summary.failures
    assert [path for path in paths if path.startswith("relevance")] == []
    assert [record["explained"] for _, record in Ledger(store).records("relevance")] == [24, 24, 24]


def test_a_unit_is_explained_while_another_is_committed(tmp_path, model, monkeypatch):
    """Each commit waits until both units are explained, which would be never, one after the other."""
    config = config_of(tmp_path / "root", model, methods=["random"])
    store = prepared(config, rows_of(24))
    (work,) = missing_work(config, Ledger(store), make_plan(config, store))
    worker = Worker(store, work.plan.resolved, WorkerOptions.of(config, work.plan.resolved.config))
    explained, at_once = threading.Barrier(2, timeout=PATIENCE_S), []

    def compute(*arguments):
        at_once.append(1)
        assert len(at_once) == 1, "two units are explained at once"
        outcomes = Worker._compute(worker, *arguments)
        at_once.pop()
        return outcomes

    def commit(*arguments):
        explained.wait()
        return Worker._commit(worker, *arguments)

    monkeypatch.setattr(worker, "_compute", compute)
    monkeypatch.setattr(worker, "_commit", commit)
    with ThreadPoolExecutor(2) as threads:
        reports = [reports_in(table)[0] for table in threads.map(worker, islice(work.work().reader()(), 2))]
    assert [report.error for report in reports] == ["", ""]


def test_the_next_units_rows_are_read_while_another_has_the_device(tmp_path, model, monkeypatch):
    """Neither gets further before both are read, which would be never if the device were held meanwhile."""
    config = config_of(tmp_path / "root", model, methods=["random"])
    store = prepared(config, rows_of(24))
    (work,) = missing_work(config, Ledger(store), make_plan(config, store))
    worker = Worker(store, work.plan.resolved, WorkerOptions.of(config, work.plan.resolved.config))
    both_read = threading.Barrier(2, timeout=PATIENCE_S)

    read = Selected.rows

    def read_both(selected, store):
        rows = read(selected, store)
        both_read.wait()
        return rows

    monkeypatch.setattr(Selected, "rows", read_both)
    with ThreadPoolExecutor(2) as threads:
        reports = [reports_in(table)[0] for table in threads.map(worker, islice(work.work().reader()(), 2))]
    assert [report.error for report in reports] == ["", ""]


def test_a_worker_without_the_package_of_a_product_names_the_product(tmp_path, model, monkeypatch):
    config = config_of(tmp_path / "root", model, methods=["random"])
    store = prepared(config, rows_of(4))
    (work,) = missing_work(config, Ledger(store), make_plan(config, store))
    worker = Worker(store, work.plan.resolved, WorkerOptions.of(config, work.plan.resolved.config))
    monkeypatch.setattr("closelook.jobs.runner.worker.PRODUCTS", {})
    (report,) = reports_in(worker(next(work.work().reader()())))
    assert report.error.endswith("no package on this machine has the product relevance: ship its wheel with the job")
