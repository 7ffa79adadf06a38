"""A batch that hangs: its process ends, and the next one makes a reject of the row to blame."""

import time

import pytest

from closelook.jobs.cluster import executor
from closelook.jobs.plan.cells import make_plan
from closelook.jobs.runner import driver
from closelook.jobs.runner.worker import Worker
from closelook.jobs.store import Ledger
from tests.jobs.small import config_of, prepared, rows_of
from tests.stages import attribute

LIMIT_S = 12  # far more than a batch of a tiny model takes, on a busy machine too


class Hanging(Worker):
    """Never ends a batch with the sample s003."""

    def __init__(self, *arguments):
        from closelook.jobs.products.explaining import Explainer

        whole = Explainer.batch

        def batch(self, rows):
            while any(row["sample_id"] == "s003" for row in rows):
                time.sleep(1)
            return whole(self, rows)

        Explainer.batch = batch
        super().__init__(*arguments)


@pytest.mark.ray
def test_a_row_that_hangs_is_a_reject_and_the_others_are_explained(tmp_path, model, local_ray, monkeypatch):
    monkeypatch.setattr(driver, "Worker", Hanging)
    monkeypatch.setattr(executor, "PATIENCE", 34)  # starts of processes count, too, which are slow on a busy machine
    limits = {"ray": {"no_progress_timeout_s": LIMIT_S}, "max_attempts": 2}
    config = config_of(tmp_path / "root", model, methods=["attnlrp"], **limits)
    store = prepared(config, rows_of(6))
    assert attribute(config, store).complete
    (cell,) = make_plan(config, store).cells()
    record = Ledger(store).record(cell.artifact)
    assert (record["explained"], record["rejects"]) == (5, {"ended_worker": 1})
    why = record["examples"]["ended_worker"]
    assert why.startswith(f"s003: the process ended while computing it: it had not ended after {LIMIT_S} s")
    assert store.files("attempts", ".json", recursive=True) == []
