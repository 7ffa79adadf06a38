"""A run with nothing to do asks an object store little, and planning many models costs what one costs."""

import time

from benchmarks import plan
from benchmarks.parts.stores import matrix
from benchmarks.parts.stores.object_store import object_store
from closelook.jobs.plan.cells import make_plan
from closelook.jobs.stages.run import run
from closelook.jobs.store import Ledger, Store
from tests.stages import attribute, missing_work


def test_complete_cells_are_read_once_by_the_stages_of_a_process():
    with object_store() as server:
        config = matrix.matrix_config(server.root("done"), shard_rows=8, models=1)
        matrix.prepare(config, Store(config.root), 8)
        _, cells = matrix.attribute(config, Store(config.root))
        assert all(summary.complete for summary in run(config, Store(config.root), ["attribute"]))
        time.sleep(max(0.0, 1.0 - time.time() % 1))  # times of object stores are whole seconds
        assert all(summary.complete for summary in run(config, Store(config.root), ["attribute"]))
        store, requests = Store(config.root), []
        for _ in range(2):
            server.requests = 0
            assert attribute(config, store).skipped == cells
            requests.append(server.requests)
    first, again = requests
    assert first <= 35 + 2 * (cells + 10), "each manifest is read once"
    assert again <= 15, "what is listed has not changed"


def test_models_of_one_tokenizer_share_its_samples_and_units(tmp_path):
    config = plan._config(str(tmp_path), 3)
    plan._prepare(str(tmp_path), 500, 3)
    store = Store(str(tmp_path))
    work = missing_work(config, Ledger(store), make_plan(config, store))
    assert len(work) == 3
    assert len({id(model.plan.inputs["sva"]) for model in work}) == 1
    assert len({id(unit) for model in work for unit in model.groups[0].units}) == len(work[0].groups[0].units)
