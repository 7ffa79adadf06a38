"""Units are read in their turn: no unit's samples are in memory long before a worker asks for them."""

import pickle
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from closelook.jobs.cluster.executor import RayExecutor, executed_by, pipeline
from closelook.jobs.cluster.pools import AHEAD_BYTES, Work
from closelook.jobs.cluster.reports import Report
from closelook.jobs.cluster.scheduler import run_all
from closelook.jobs.plan.cells import make_plan
from closelook.jobs.store import Ledger, Store
from tests.jobs.small import config_of, prepared, rows_of
from tests.stages import missing_work

UNITS = 600
BYTES = 1_000_000  # of a unit
STILL_S = 3.0  # without another unit: the reader waits


class Pooled(RayExecutor):
    """An executor with a pool of actors for every model, as on a cluster, on a single machine too."""

    @contextmanager
    def streaming(self, works, on_gpu):
        yield pipeline


def test_units_that_another_process_reads_are_those_of_the_driver(tmp_path, model):
    config = config_of(tmp_path / "root", model)
    store = prepared(config, rows_of(24))
    (missing,) = missing_work(config, Ledger(store), make_plan(config, store))
    work = missing.work()
    direct, travelled = list(work.reader()()), list(pickle.loads(pickle.dumps(work.reader()))())
    assert len(direct) == work.units > 2
    for table, same in zip(direct, travelled, strict=True):
        units = [pickle.loads(sent["unit"][0].as_py()) for sent in (table, same)]
        assert units[0].rows.table == units[1].rows.table
        assert units[0].title == units[1].title
        assert [part.paths for part in units[0].parts] == [part.paths for part in units[1].parts]


class Reader:
    """Makes units of random bytes, and a file for each that it has made."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self):
        for unit in range(UNITS):
            (self.folder / f"read-{unit}").touch()
            yield pa.table({"unit": [unit], "data": [np.random.default_rng(unit).bytes(BYTES)]})


class Waiting:
    """A worker that begins when no more units are read, and says how many were by then."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.read = folder, 0

    def __call__(self, table: pa.Table) -> pa.Table:
        before = -1
        while not self.read and before != (before := len(list(self.folder.glob("read-*")))):
            time.sleep(STILL_S)
        self.read = self.read or before
        return Report(str(table["unit"][0]), 1, self.read).to_table()


@pytest.mark.ray
def test_the_reader_waits_for_busy_workers(tmp_path):
    config = config_of(tmp_path / "root", models=[{"name": "a", "id": "a"}])
    read: list[int] = []
    work = Work(
        name="a",
        model=config.models[0],
        worker=Waiting,
        arguments=(tmp_path,),
        size=UNITS,
        on_report=lambda report: read.append(report.tokens),
        reader=lambda: Reader(tmp_path),
        units=UNITS,
    )
    store = Store(config.root)
    store.create()
    with executed_by(Pooled()):
        assert run_all(config, store, [work], "attribute", "rows") == []
    assert len(read) == UNITS
    assert read[0] <= AHEAD_BYTES / BYTES
