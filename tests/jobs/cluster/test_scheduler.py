"""The scheduler of works, without Ray: which run at once, what a failure concerns, what is told of it."""

import json
import threading
import time
from dataclasses import replace

import pytest

from closelook.jobs.cluster import scheduler
from closelook.jobs.cluster.executor import executed_by
from closelook.jobs.cluster.pools import Work
from closelook.jobs.cluster.reports import Report
from closelook.jobs.cluster.scheduler import run_all
from closelook.jobs.cluster.slots import Slots
from tests.jobs.inline import Inline, Unused
from tests.jobs.small import config_of
from tests.patience import wait_for

REPORT = Report("u", rows=1, tokens=1)


class Cluster(Inline):
    """Streams that are held until the test lets them go, and which works run."""

    def __init__(self):
        super().__init__(places=lambda: Slots([({}, 2)]), stream=self.held)
        self.begun, self.most, self.expected = [], 0, 1
        self._running, self._lock = set(), threading.Lock()

    def held(self, config, stage, work, share):
        with self._lock:
            self.begun.append((work.name, share.workers))
            self._running.add(work.name)
            self.most = max(self.most, len(self._running))
        wait_for(lambda: self.most >= self.expected)
        time.sleep(0.05)  # long enough for another to begin, if it might
        for block in work.arguments[0]:
            if isinstance(block, Exception):
                raise block
            yield replace(REPORT, **block)
        with self._lock:
            self._running.discard(work.name)


@pytest.fixture
def cluster():
    """Two CPUs."""
    cluster = Cluster()
    with executed_by(cluster):
        yield cluster


@pytest.fixture
def do(cluster, tmp_path):
    """Run works given as (name, workers, blocks); the failures."""

    def run(*works, ended=tuple, **settings):
        models = [{"name": name, "id": name, "workers": workers} for name, workers, _ in works]
        config = config_of(tmp_path, models=models, **settings)
        store = scheduler.Store(config.root)
        todo = [
            Work(name, model, None, (blocks,), size=len(blocks), units=len(blocks), on_end=ended)
            for (name, _, blocks), model in zip(works, config.models, strict=True)
        ]
        return run_all(config, store, todo, "attribute", "rows")

    return run


@pytest.mark.parametrize(("workers", "most"), [([2, 2], 1), ([1, 1], 2)])
def test_models_run_at_once_where_they_fit_and_else_in_their_order(workers, most, do, cluster):
    cluster.expected = most
    assert do(*((name, workers, [{}, {}]) for name in "cab")) == []
    begun = [name for name, _ in cluster.begun]
    assert sorted(begun[:most]) == sorted("cab"[:most]), "threads that start together begin in any order"
    assert begun[most:] == [*"cab"[most:]]
    assert cluster.most == most


def test_a_model_that_waits_for_room_lets_smaller_ones_pass(do, cluster):
    cluster.expected = 2
    do(("a", [1, 1], [{}]), ("b", [2, 2], [{}, {}]), ("c", [1, 1], [{}]))
    *first, last = (name for name, _ in cluster.begun)
    assert (sorted(first), last) == (["a", "c"], "b")


def test_ray_may_let_a_pool_grow_unless_a_model_waits(do, cluster):
    seen = []

    def stream(config, stage, work, share):
        seen.append((work.name, share.workers, share.most))
        yield REPORT

    cluster.stream = stream
    do(("small", [2, 4], [{}] * 5), ("large", [2, 4], [{}] * 5))
    assert seen == [("small", 2, 2), ("large", 2, 4)]


def test_a_model_that_asks_for_more_than_the_cluster_has_fails_alone(do, cluster):
    failures = do(("large", [3, 3], [{}] * 3), ("small", [1, 2], [{}] * 3))
    assert failures == ["model large asks for more than the cluster has: 3 x 1 CPU"]
    assert cluster.begun == [("small", 2)]


def test_no_model_gets_more_workers_than_it_has_units(do, cluster):
    assert do(("a", [3, 8], [{}])) == [], "one unit is left of a model that would have three workers"
    assert cluster.begun == [("a", 1)]


def test_what_is_raised_for_a_model_is_its_failure_in_one_line(do, cluster):
    failures = do(("a", [1, 1], [RuntimeError("a node died\nlong trace")]), ("b", [1, 1], [OSError("busy\n")]))
    assert failures == ["model a: RuntimeError: a node died", "model b: busy"]


def logged(root):
    return [line for path in root.glob("logs/*/*.jsonl") for line in path.read_text().splitlines()]


def test_every_failure_is_told_in_the_order_of_models(do, tmp_path):
    failures = do(("a", [2, 2], [{"error": "first"}, {}, {"error": "second"}]), ("b", [1, 1], [{"error": "other"}]))
    assert failures == ["first", "second", "other"]
    lines = [json.loads(line) for line in logged(tmp_path)]
    ends = {line["pool"]: line["errors"] for line in lines if line["event"] == "end"}
    assert ends == {"a": ["first", "second"], "b": ["other"]}
    assert [line["error"] for line in lines if line["event"] == "unit" and line["pool"] == "a"] == [
        "first",
        "",
        "second",
    ]


def test_nothing_is_read_after_a_fatal_report(do):
    assert do(("a", [1, 1], [{"error": "no", "fatal": True}, RuntimeError("read on")])) == ["no"]


def test_a_work_is_ended_however_its_units_went(do):
    failures = do(
        ("whole", [1, 1], [{}]),
        ("raises", [1, 1], [RuntimeError("no")]),
        ("done", [1, 1], []),
        ("large", [3, 3], [{}] * 3),
        ended=lambda: ("ended",),
    )
    assert failures.count("ended") == 4


def test_the_next_model_has_the_workers_while_the_last_is_closed(do, cluster):
    """The first model's cells are closed only after the second has begun, which would wait for ever otherwise."""
    seen = []

    def ended():
        wait_for(lambda: len(cluster.begun) == 2)
        seen.append(len(cluster.begun))
        return ()

    assert do(("a", [2, 2], [{}, {}]), ("b", [2, 2], [{}, {}]), ended=ended) == []
    assert seen == [2, 2]


def test_a_store_that_fails_workers_and_driver_alike_is_told_once(do):
    def ended():
        raise OSError("no space left under /root")

    full = {"error": "no space left under /root", "fatal": True}
    failures = do(("a", [1, 1], [full]), ("b", [1, 1], [{}]), ended=ended)
    assert failures == ["no space left under /root", "model b: no space left under /root"]


def test_an_error_without_a_message_is_told_beside_other_failures(do):
    def ended():
        raise AssertionError

    fatal = {"error": "the worker failed", "fatal": True}
    failures = do(("a", [1, 1], [fatal]), ended=ended)
    assert failures == ["the worker failed", "model a: AssertionError: "]


def test_a_run_that_is_stopped_closes_nothing(do, monkeypatch):
    """The driver is interrupted while it waits; the model's thread finds its workers gone later."""
    gone, closed, threads = threading.Event(), [], threading.enumerate()

    class Interrupted:
        def get(self):
            raise KeyboardInterrupt

        def put(self, end):
            closed.append(end)

    class Held(list):
        def __iter__(self):
            gone.wait(10)
            yield RuntimeError("the workers are gone")

    monkeypatch.setattr(scheduler.queue, "SimpleQueue", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        do(("a", [1, 1], Held([{}])), ended=lambda: pytest.fail("closed"))
    gone.set()
    for thread in set(threading.enumerate()) - set(threads):
        thread.join(10)
    assert closed == [("a", None), ("a", ["model a: RuntimeError: the workers are gone"])]


def test_works_without_units_need_no_cluster(do):
    with executed_by(Unused()):
        assert do(("a", [1, 1], []), ended=lambda: ["its cells are closed"]) == ["its cells are closed"]
