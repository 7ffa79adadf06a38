"""Several nodes: pools spread over them, a node that goes, models that run at once or wait."""

import json
import os
import threading
import time
from pathlib import Path

import pytest

from closelook.jobs.cluster.pools import LOCAL_SETTINGS, SETTINGS
from closelook.jobs.cluster.slots import Share, Slots, share_of
from closelook.jobs.config import RunConfig
from closelook.jobs.plan.cells import make_plan
from closelook.jobs.runner import driver as stage
from closelook.jobs.runner.worker import Worker
from tests.jobs.small import config_of, prepared, relevance_of, rows_of
from tests.patience import wait_for
from tests.stages import attribute

ROWS, MANY = rows_of(24), rows_of(160)
QUICK = {"health_check_period_ms": 500, "health_check_failure_threshold": 4}  # of nodes, after how long they are lost


@pytest.fixture(scope="module")
def cluster(one_start):
    """A head without CPUs and two nodes with one each, whose workers can import this file."""
    for name, value in (SETTINGS | LOCAL_SETTINGS).items():  # before Ray is imported, which may be here
        os.environ.setdefault(name, value)
    import ray
    from ray.cluster_utils import Cluster

    ray.shutdown()  # one that another module left
    head = {"num_cpus": 0, "include_dashboard": False, "_system_config": QUICK}
    with one_start():
        nodes = Cluster(initialize_head=True, head_node_args=head)
        nodes.add_node(num_cpus=1)
        nodes.second = nodes.add_node(num_cpus=1)
        nodes.wait_for_nodes()
        ray.init(address=nodes.address, log_to_driver=False)
    ray.cloudpickle.register_pickle_by_value(__import__(__name__, fromlist=["Slow"]))
    yield nodes
    ray.shutdown()
    nodes.shutdown()


class Slow(Worker):
    def __call__(self, table):
        time.sleep(0.7)
        return super().__call__(table)


@pytest.mark.ray
def test_a_run_outlives_a_node_that_is_removed(cluster, expected, tmp_path, model, monkeypatch):
    import ray

    monkeypatch.setattr(stage, "Worker", Slow)
    config = config_of(tmp_path / "root", models=[{"name": "gpt2", "id": str(model), "workers": [1, 2]}])
    store = prepared(config, ROWS)

    def remove():
        while len(store.files("relevance", recursive=True)) < 3:
            time.sleep(0.05)
        cluster.remove_node(cluster.second, allow_graceful=False)

    thread = threading.Thread(target=remove)
    thread.start()
    assert attribute(config, store).complete
    thread.join()
    while len([node for node in ray.nodes() if node["Alive"]]) > 2:  # Ray notices after a while
        time.sleep(0.1)
    assert relevance_of(config, store) == expected


@pytest.mark.ray
def test_nodes_that_are_removed_while_a_batch_runs_make_no_row_a_reject(cluster, tmp_path, model, monkeypatch):
    """The only unit's batch runs on two nodes in turn, each of which is lost meanwhile, then on a third."""
    import ray

    while len(cluster.worker_nodes) < 3:
        cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    nodes = {node.node_id: node for node in cluster.worker_nodes}  # the head has no CPU to run anything
    begun = tmp_path / "begun"
    begun.touch()

    class Stuck(Worker):
        def __call__(self, table):
            from closelook.jobs.products.explaining import Explainer

            whole = Explainer.batch

            def batch(explainer, rows):
                if len(begun.read_text().split()) < 2:
                    with begun.open("a") as file:
                        file.write(ray.get_runtime_context().get_node_id() + "\n")
                    time.sleep(600)
                return whole(explainer, rows)

            Explainer.batch = batch
            return super().__call__(table)

    def lose_two():
        for seen in (1, 2):
            while len(lines := begun.read_text().split()) < seen:
                time.sleep(0.05)
            cluster.remove_node(nodes.pop(lines[-1]), allow_graceful=False)

    threading.Thread(target=lose_two, daemon=True).start()
    monkeypatch.setattr(stage, "Worker", Stuck)
    config = config_of(tmp_path / "root", model, max_attempts=1, token_budget=512)
    store = prepared(config, ROWS[:8])
    summary = attribute(config, store)
    for node in nodes.values():
        cluster.remove_node(node)
    assert summary.complete, summary.failures
    assert len(set(begun.read_text().split())) == 2
    for planned in make_plan(config, store).cells():
        record = store.manifest(planned.artifact.name)
        assert (record["explained"], record["rejects"]) == (8, {})


def logged(root, event):
    """The log's lines of an event."""
    lines = [json.loads(line) for path in root.glob("logs/*/[0-9]*.jsonl") for line in path.read_text().splitlines()]
    return [line for line in lines if line["event"] == event]


def test_workers_are_packed_by_node():
    slots = Slots([({}, 2.0), ({}, 1.0)])
    assert slots.room(Share(2, 0)) == 1
    assert slots.room(Share(0.5, 0)) == 6
    pair = slots.take(Share(2, 0), 1, 8)
    assert pair == [0]
    assert slots.take(Share(2, 0), 1, 1) is None, "one GPU here and one there are not two"
    halves = slots.take(Share(0.5, 0), 1, 8)
    assert halves == [1, 1]
    slots.give_back(Share(2, 0), pair)
    assert slots.take(Share(1, 0), 1, 8) == [0, 0]


def test_a_node_without_labels_takes_what_asks_for_memory_and_a_larger_gpu_takes_the_place_of_a_smaller():
    assert Slots([({}, 8.0)]).room(Share(1, 0, (("gpu-memory", "80gb"),))) == 8
    assert Slots([({"gpu-memory": "80gb"}, 2.0)]).room(Share(1, 0, (("gpu-memory", "24gb"),))) == 2
    assert Slots([({"gpu-memory": "24gb"}, 2.0)]).room(Share(1, 0, (("gpu-memory", "80gb"),))) == 0
    assert Slots([({"zone": "a"}, 2.0)]).room(Share(1, 0, (("zone", "b"),))) == 0


def test_the_paper_finds_room_on_a_machine_that_says_nothing_of_its_gpus():
    slots = Slots([({"ray.io/accelerator-type": "A100"}, 8.0)])
    assert [slots.room(share_of(model, on_gpu=True)) for model in RunConfig.load("paper").models] == [8] * 9


def test_workers_go_to_the_nodes_that_they_were_counted_on():
    slots = Slots([({}, 2.0), ({}, 2.0)], ["a", "b"])
    pair, large = Share(1, 0), Share(2, 0)
    first, second = slots.take(pair, 2, 2), slots.take(large, 1, 1)
    assert slots.placed(pair, first).selectors()[:2] == [{"ray.io/node-id": "in(a)"}, {"ray.io/node-id": "in(a,b)"}]
    assert slots.placed(large, second).selectors()[0] == {"ray.io/node-id": "in(b)"}
    grown = Slots([({"gpu-memory": "80gb"}, 1.0)]).placed(Share(1, 0, (("gpu-memory", "141gb"),)), [0])
    assert grown.selectors() == [{"gpu-memory": "in(141gb,180gb,192gb,288gb)"}], (
        "of a cluster that grows, no node is known"
    )


class Meeting(Worker):
    """Model `whole` goes on when model `pair` has begun; each notes its node."""

    def __call__(self, table):
        import ray

        folder, name = Path(self._store.root).parent, self._model.config.name
        (folder / f"{name}-{ray.get_runtime_context().get_node_id()}").touch()
        if name == "whole":
            wait_for(lambda: list(folder.glob("pair-*")))
        return super().__call__(table)


@pytest.mark.nightly
@pytest.mark.ray
def test_whole_gpus_pairs_and_halves_go_to_nodes_that_have_them(cluster, tmp_path, model, monkeypatch):
    """On two nodes of two GPUs that Ray only counts where there are none: models run on the CPU.

    Two workers of a GPU each run beside one of two GPUs, although Ray would give the first model one on each node.
    """
    nodes = [cluster.add_node(num_cpus=1, num_gpus=2, labels={"gpu-memory": "24gb"}) for _ in range(2)]
    cluster.wait_for_nodes()
    monkeypatch.setattr(stage, "Worker", Meeting)
    asks = {
        "whole": {"gpus": 1, "workers": [2, 2]},
        "pair": {"gpus": 2, "workers": [1, 1], "max_memory": {"cpu": "1GiB"}},
        "halves": {"gpus": 0.5, "workers": [2, 2]},
        "elsewhere": {"gpus": 1, "labels": {"gpu-memory": "80gb"}},
    }
    labels = {"labels": {"gpu-memory": "24gb"}}
    config = config_of(
        tmp_path / "root", models=[{"name": name, "id": str(model)} | labels | ask for name, ask in asks.items()]
    )
    store = prepared(config, ROWS)
    summary = attribute(config, store)
    for node in nodes:
        cluster.remove_node(node)
    (failure,) = summary.failures
    assert failure == "model elsewhere asks for more than the cluster has: 1 x 1 GPU on nodes labelled gpu-memory=80gb"
    used = {name: {path.name.removeprefix(f"{name}-") for path in tmp_path.glob(f"{name}-*")} for name in asks}
    assert len(used["whole"]) == len(used["pair"]) == 1
    assert used["whole"] != used["pair"]
    relevance = relevance_of(config.model_copy(update={"models": config.models[:3]}), store)
    for method in (entry.name for entry in config.methods):
        halves, whole = (relevance[f"relevance {name}/sva/float32/{method}"] for name in ("halves", "whole"))
        assert halves.num_rows
        assert halves == whole
        assert f"relevance pair/sva/float32/{method}" in relevance


def test_labels_choose_the_nodes():
    slots = Slots([({"gpu-memory": "24gb"}, 4.0), ({"gpu-memory": "80gb"}, 2.0)])
    large = Share(1, 0, (("gpu-memory", "80gb"),))
    assert slots.room(large) == 2
    assert slots.take(large, 1, 8) == [1, 1]
    assert slots.take(large, 1, 8) is None


def test_a_model_with_less_work_than_its_fewest_workers_gets_what_it_can_use():
    slots = Slots([({}, 2.0)])
    assert slots.take(Share(1, 0), fewest=2, most=1) == [0]
    assert slots.take(Share(1, 0), fewest=2, most=2) is None


def test_thirds_of_a_gpu_fit_three_times():
    slots = Slots([({}, 1.0)])
    assert slots.take(Share(1 / 3, 0), 1, 8) == [0, 0, 0]
