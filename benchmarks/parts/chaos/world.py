"""The world of a run under chaos: a cluster of Ray nodes on this machine, a small disk, stores, models and drivers."""

from __future__ import annotations

import ctypes
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.parts.chaos.driver import CHAOS
from benchmarks.parts.stores.object_store import ObjectStore
from closelook.evaluation.benchmark.demo import model_dir
from closelook.jobs.cluster.pools import LOCAL_SETTINGS, SETTINGS
from closelook.jobs.commands.roots.commands import CLONE
from closelook.jobs.store import Store

NODES = 2
NODE_ATTEMPTS = 5
DISK_MIB = 96
#: Settings of Ray by which a silent node is declared dead after seconds, not after a minute as in real clusters.
QUICK = {"health_check_period_ms": 1000, "health_check_failure_threshold": 5, "health_check_initial_delay_ms": 0}
STALE_S = 12.0  # after which the lock of a driver that does not renew it may be taken over
WEIGHTS = "model.safetensors"
_SETTINGS = {
    "name": "chaos",
    "device": "cpu",
    "token_budget": 128,
    "shard_rows": 4,
    "max_attempts": 10,  # many: workers cannot know that no row is to blame when this benchmark kills them
    "report": {"samples": 1, "resamples": 20},
    "ray": {"no_progress_timeout_s": 15},
}
_CLONE_NEWNS, _MS_PRIVATE_REC = 0x00020000, 0x4000 | 0x40000


@dataclass
class Driver:
    """A process that runs a command of closelook on the cluster, with its own process group."""

    process: subprocess.Popen[bytes]
    command: str
    log: Path

    @property
    def code(self) -> int | None:
        """Its exit code; None while it runs."""
        return self.process.poll()

    def signal(self, number: int) -> None:
        """Sends a signal to every process of its group."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


@dataclass
class World:
    """All that a run under chaos works with. `pending` holds what is to be called later, with the time of each call."""

    folder: Path
    draw: random.Random
    server: ObjectStore
    is_disk_small: bool  # whether local roots lie on a small file system of their own
    cluster: Any = None
    config: Path = Path()
    root: str = ""
    driver: Driver | None = None
    pending: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    started: list[Driver] = field(default_factory=list)

    # The cluster.

    def start_cluster(self) -> None:
        """Starts a head node without CPUs, and worker nodes with one CPU each, on loopback."""
        os.environ.update({**SETTINGS, **LOCAL_SETTINGS, CHAOS: str(self.folder), "PYTHONPATH": str(CLONE)})
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "include_dashboard": False, "_system_config": QUICK}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        while len(self.cluster.worker_nodes) < NODES:
            self.cluster.add_node(num_cpus=1)

    def mend_cluster(self) -> None:
        """Replaces nodes that were killed, or that were paused so long that Ray declared them dead."""
        for node in list(self.cluster.worker_nodes):
            if not node.all_processes.get("raylet") or node.all_processes["raylet"][0].process.poll() is not None:
                self.cluster.remove_node(node, allow_graceful=False)
        attempts = 0
        while len(self.cluster.worker_nodes) < NODES:
            try:
                self.cluster.add_node(num_cpus=1)
            except Exception:  # Ray raises no class of its own if a busy machine needs more than 30 seconds
                attempts += 1
                if attempts == NODE_ATTEMPTS:
                    raise

    def raylets(self) -> list[psutil.Process]:
        """The raylet processes of the nodes that run."""
        processes = []
        for node in self.cluster.worker_nodes:
            with suppress(psutil.NoSuchProcess, KeyError, IndexError):
                processes.append(psutil.Process(node.all_processes["raylet"][0].process.pid))
        return processes

    def workers(self) -> list[psutil.Process]:
        """The Ray processes that compute units at the moment."""
        processes = []
        for raylet in self.raylets():
            with suppress(psutil.NoSuchProcess):
                for process in raylet.children(recursive=True):
                    with suppress(psutil.NoSuchProcess):
                        title = " ".join(process.cmdline())
                        if title.startswith("ray::") and "IDLE" not in title:
                            processes.append(process)
        return processes

    # The driver.

    def start_driver(self) -> None:
        """Starts `closelook run` on the root, as a scheduler would."""
        self.driver = self.run("run")

    def run(self, command: str, *arguments: str) -> Driver:
        """Starts a command of closelook with the config and the root."""
        return self.start(command, "--config", str(self.config), "--root", self.root, *arguments)

    def start(self, command: str, *arguments: str) -> Driver:
        """Starts a command of closelook."""
        log = self.folder / f"driver-{len(self.started):03d}.log"
        words = [sys.executable, "-m", "benchmarks.parts.chaos.driver", command, *arguments]
        environment = {**os.environ, "RAY_ADDRESS": self.cluster.address, "CLOSELOOK_LOCK_STALE_S": str(STALE_S)}
        with log.open("wb") as file:
            process = subprocess.Popen(
                words, cwd=self.folder, env=environment, start_new_session=True, stdout=file, stderr=file
            )
        self.started.append(Driver(process, command, log))
        return self.started[-1]

    def end_drivers(self) -> None:
        """Kills every command that still runs."""
        for driver in self.started:
            if driver.code is None:
                driver.signal(signal.SIGKILL)
                driver.process.wait()
        self.driver = None

    def reap(self) -> int | None:
        """The exit code of the driver if it has ended, else None. A driver that has ended is then forgotten."""
        if self.driver is None or self.driver.code is None:
            return None
        code, self.driver = self.driver.code, None
        return code

    # Calls that end disturbances later.

    def later(self, seconds: float, undo: Callable[[], None]) -> None:
        self.pending.append((time.monotonic() + seconds, undo))

    def undo(self, everything: bool = False) -> None:
        """Makes the pending calls whose time has come, or all of them."""
        now = time.monotonic()
        due = [entry for entry in self.pending if everything or entry[0] <= now]
        self.pending = [entry for entry in self.pending if entry not in due]
        for _, undo in due:
            undo()

    # Stores, disks and models.

    @property
    def store(self) -> Store:
        return Store(self.root)

    @property
    def is_local(self) -> bool:
        return "://" not in self.root

    @property
    def disk(self) -> Path:
        """The folder that local roots are in."""
        return self.folder / "disk"

    def model(self, name: str) -> Path:
        """The folder of a model whose files may be changed."""
        return self.folder / "models" / name

    def copy_model(self, name: str, other: str) -> None:
        """Copies the demo model `name` into its folder, with the weights of the model `other` beside its own."""
        shutil.copytree(model_dir(name), self.model(name))
        shutil.copy(model_dir(other) / WEIGHTS, self.model(name) / "other.weights")
        shutil.copy(model_dir(name) / WEIGHTS, self.model(name) / "own.weights")

    def put_weights(self, name: str, kind: str) -> None:
        """Puts the model's `own` weights in place, or the `other` ones, by one rename."""
        folder = self.model(name)
        shutil.copy2(folder / f"{kind}.weights", folder / ".next")
        os.replace(folder / ".next", folder / WEIGHTS)

    def stop(self) -> None:
        """Ends all drivers and the cluster, and unmounts the disk."""
        self.end_drivers()
        if self.cluster is not None:
            self.cluster.shutdown()
        if self.is_disk_small:
            subprocess.run(["umount", "--lazy", str(self.disk)], check=False)


def mount_disk(folder: Path) -> bool:
    """Mounts a small file system at `folder` that only this process and its children see; False if that is refused."""
    folder.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) or libc.mount(b"none", b"/", None, _MS_PRIVATE_REC, None):
        return False
    size = f"size={DISK_MIB}m".encode()
    return libc.mount(b"tmpfs", str(folder).encode(), b"tmpfs", 0, size) == 0


def settings(folder: Path, methods: Sequence[str], more: Mapping[str, Any]) -> dict[str, Any]:
    """The config of the runs: a model with up to two workers and a model with one. `more` are further keys."""
    models = [
        {"name": "gpt2", "id": str(folder / "models" / "gpt2"), "workers": [1, 2]},
        {"name": "bert", "id": "demo/bert"},
    ]
    return {**_SETTINGS, "root": str(folder / "root"), "models": models, "methods": list(methods), **more}
