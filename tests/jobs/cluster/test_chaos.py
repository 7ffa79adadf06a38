"""A run under faults, in an order drawn by a seed: no row is lost, and none has other numbers than an undisturbed run.

Workers and drivers are killed, a node is lost, a second driver starts, memory runs out, and a disk is full or an S3
server refuses requests. Ray, processes and the disk are real. `python -m tests.jobs.cluster.test_chaos`
is the command line with workers that are slow enough to be disturbed.
"""

import ctypes
import os
import random
import resource
import signal
import sys
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from closelook.jobs.runner import driver as stage
from closelook.jobs.runner.worker import Worker
from closelook.jobs.store import Store
from closelook.lrp_core.methods import gradients
from tests.jobs.small import closelook, config_of, ended, prepared, relevance_of, rows_of
from tests.patience import wait_for

SEED = int(os.environ.get("SEED", "3"))
ROWS = rows_of(600)
UNIT_S = 0.5
CALM_RUNS = 3  # runs without faults within which all is computed
FLAG = "CLOSELOOK_TEST_MEMORY"  # the environment variable with a file: the worker that takes it has little memory
QUICK = {"health_check_period_ms": 1000, "health_check_failure_threshold": 5}  # of nodes, after how long they are lost
DISK_BYTES = 32 << 20
NEWNS, PRIVATE = 0x00020000, 0x4000 | 0x40000  # of Linux: mounts of this process are its own
pytestmark = [pytest.mark.nightly, pytest.mark.ray]


class Slow(Worker):
    """A worker that takes its time for each unit."""

    def __call__(self, table):
        time.sleep(UNIT_S)
        with suppress(FileNotFoundError):  # no memory is to run out, or another worker's does
            os.rename(os.environ[FLAG], os.environ[FLAG] + "-taken")
            return self._in_little_memory(table)
        return super().__call__(table)

    def _in_little_memory(self, table):
        """Computes a unit while each row of a batch needs 256 MiB, and the process may have 600 MiB more."""
        whole = gradients.forward_pass

        def hungry(view, piece, *arguments, **settings):
            try:
                kept = torch.empty(len(piece.batch) << 28, dtype=torch.uint8)
            except RuntimeError:
                Path(os.environ[FLAG] + "-ran-out").touch()
                raise
            result = whole(view, piece, *arguments, **settings)
            del kept
            return result

        used = psutil.Process().memory_info().vms
        limits = resource.getrlimit(resource.RLIMIT_AS)
        gradients.forward_pass = hungry
        resource.setrlimit(resource.RLIMIT_AS, (used + (600 << 20), limits[1]))
        try:
            return super().__call__(table)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, limits)
            gradients.forward_pass = whole


class World:
    """The cluster, the disk and the S3 server of a run, and its driver."""

    def __init__(self, cluster, server, disk, flag, is_small):
        self.cluster, self.server, self.disk, self.flag, self.is_small = cluster, server, disk, flag, is_small
        self.draw = random.Random(SEED)
        self.driver = self.arguments = self.store = None

    def start(self):
        """A process that runs the job on the cluster."""
        module = "tests.jobs.cluster.test_chaos"
        environment = {name: value for name, value in os.environ.items() if name.startswith("RAY_")}
        environment |= {"RAY_ADDRESS": self.cluster.address, "CLOSELOOK_LOCK_STALE_S": "5"}
        return closelook(*self.arguments, module=module, **environment)

    def shards(self):
        """The files of relevance; none where the store does not answer."""
        try:
            return len(self.store.files("relevance", ".parquet", recursive=True))
        except OSError:
            return 0

    def wait_for_progress(self):
        """Wait until a unit more is committed or the driver ends; one that ended is started again."""
        before = self.shards()
        wait_for(lambda: self.shards() > before or self.driver.poll() is not None)
        if self.driver.poll() is not None:
            self.driver.communicate()
            self.driver = self.start()

    def kill(self):
        """Kill the driver and its children."""
        if self.driver is None:
            return
        if self.driver.poll() is None:
            os.killpg(self.driver.pid, signal.SIGKILL)
        self.driver.communicate()


def kill_a_worker(world):
    computing = []
    for node in world.cluster.worker_nodes:
        raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
        for child in raylet.children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                title = " ".join(child.cmdline())
                if title.startswith("ray::") and "IDLE" not in title:
                    computing.append(child)
    if computing:
        with suppress(psutil.NoSuchProcess):
            world.draw.choice(computing).kill()


def lose_a_node(world):
    node = world.draw.choice(sorted(world.cluster.worker_nodes, key=lambda node: node.node_id))
    world.cluster.remove_node(node, allow_graceful=False)
    add_node(world.cluster)


def add_node(cluster):
    """Add a node with one CPU. Ray raises no class of its own if a busy machine needs more than 30 seconds."""
    for _ in range(4):
        with suppress(Exception):
            return cluster.add_node(num_cpus=1)
    return cluster.add_node(num_cpus=1)


def kill_the_driver(world):
    world.kill()
    world.driver = world.start()


def start_a_second_driver(world):
    code, _, err = ended(world.start())
    if world.driver.poll() is None:
        assert code == 1, err
        assert "is in use by" in err


def run_out_of_memory(world):
    Path(world.flag).touch()


def fill_the_disk(world):
    ballast = world.disk / "ballast"
    free = os.statvfs(world.disk)
    with ballast.open("wb") as file, suppress(OSError):
        os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize)
    time.sleep(world.draw.uniform(2, 4))
    ballast.unlink()


def refuse_requests(world):
    world.server.failing_share = world.draw.choice([0.3, 1.0])
    time.sleep(world.draw.uniform(2, 4))
    world.server.failing_share = 0.0


FAULTS = [kill_a_worker, lose_a_node, kill_the_driver, start_a_second_driver, run_out_of_memory]


@pytest.fixture(scope="module")
def world(one_start, tmp_path_factory, moto):
    """Two nodes with one CPU each, an S3 server, and a small disk where this process may mount one."""
    from benchmarks.object_store import object_store
    from closelook.jobs.cluster.pools import LOCAL_SETTINGS, SETTINGS

    folder = tmp_path_factory.mktemp("world")
    (folder / "disk").mkdir()
    libc = ctypes.CDLL(None)
    size = f"size={DISK_BYTES}".encode()
    mounts = [(b"none", b"/", None, PRIVATE, None), (b"tmpfs", bytes(folder / "disk"), b"tmpfs", 0, size)]
    is_small = not libc.unshare(NEWNS) and not any(libc.mount(*mount) for mount in mounts)
    with object_store() as server, pytest.MonkeyPatch.context() as patch:
        for name, value in {**SETTINGS, **LOCAL_SETTINGS, FLAG: str(folder / "flag")}.items():
            patch.setenv(name, value)
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        import ray
        from ray.cluster_utils import Cluster

        ray.shutdown()  # one that another module left
        with one_start():
            head = {"num_cpus": 0, "include_dashboard": False, "_system_config": QUICK}
            cluster = Cluster(initialize_head=True, head_node_args=head)
            add_node(cluster)
            add_node(cluster)
        world = World(cluster, server, folder / "disk", folder / "flag", is_small)
        yield world
        world.kill()
        cluster.shutdown()
        if is_small:
            libc.umount(bytes(folder / "disk"))


@pytest.mark.parametrize("storage", ["disk", "s3"])
def test_under_faults_no_row_is_lost_and_none_has_other_numbers(world, expected, model, tmp_path, storage):
    root = str(world.disk / "root") if storage == "disk" else world.server.root("root")
    changes = {"models": [{"name": model.name, "id": str(model), "workers": [1, 2]}], "max_attempts": 20}
    config = config_of(root, **changes, ray={"no_progress_timeout_s": 60})
    world.store = prepared(config, ROWS)
    file = tmp_path / "chaos.json"
    file.write_text(config.model_dump_json())
    world.arguments = ("attribute", "--config", str(file))
    world.driver = world.start()
    faults = [*FAULTS, refuse_requests] if storage == "s3" else [*FAULTS, *[fill_the_disk] * world.is_small]
    for fault in world.draw.sample(faults, len(faults)):
        world.wait_for_progress()
        fault(world)
    code, out, err = ended(world.driver)
    for _ in range(CALM_RUNS):
        if code != 0:
            world.driver = world.start()
            code, out, err = ended(world.driver)
    assert code == 0, out + err
    assert not world.store.files("relevance/rejects", recursive=True)
    found = relevance_of(config, Store(root))
    assert found.keys() == expected.keys()
    for cell, table in found.items():
        assert_same(table, expected[cell])
    assert Path(f"{world.flag}-ran-out").exists(), "memory ran out, and no row was lost"


def assert_same(table, other):
    """The same rows with the same numbers but for rounding, which depends on what shares a batch."""
    for name in other.column_names:
        column, same = table[name].to_pylist(), other[name].to_pylist()
        if not isinstance(same[0], float | list):
            assert column == same
            continue
        lists = isinstance(same[0], list)
        assert not lists or list(map(len, column)) == list(map(len, same))
        ours, theirs = (np.concatenate(values) if lists else np.array(values) for values in (column, same))
        np.testing.assert_allclose(ours.astype(float), theirs.astype(float), rtol=1e-4, atol=1e-6)


if __name__ == "__main__":
    from closelook.jobs.__main__ import main

    # Workers import this module by its name: the driver must send the class of that module, not that of __main__.
    stage.Worker = import_module("tests.jobs.cluster.test_chaos").Slow
    main()
