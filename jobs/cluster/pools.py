"""Ray: how to join or start it, and how many workers each model gets.

Several models run at once when their workers fit. The driver counts slots itself and gives every model a pool of
fixed size: pools that grow inside Ray compete for the same resources, and its division may leave a dataset nothing.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from jobs.cluster.labels import Needs, allowed, known, matches
from jobs.config import ModelConfig, RunConfig
from lrp_core.types import UserError

if TYPE_CHECKING:
    from ray.data import Dataset

# Ray reads these when it is imported or started.
_SETTINGS = {
    "RAY_DATA_PARQUET_FOOTER_NUM_ACTORS": "1",  # 32 by default, for every read
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",  # workers without a GPU see none
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_AUTO_CONNECT": "0",  # a thread that outlives the connection must not start a Ray of its own
    # Ray's C++ side calls an error what Ray Data does on purpose: restartable actors whose arguments are objects.
    "RAY_BACKEND_LOG_LEVEL": "fatal",
}
# A Ray that takes this machine for one that cannot be part of a cluster binds every port to loopback.
# It warns of four times as many processes as it may start at once, by default one a core: few pools reach that.
_LOCAL_SETTINGS = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_worker_maximum_startup_concurrency": "8"}


PATIENCE = 4  # times `ray.no_progress_timeout_s`: a batch and then a row of it may hang before a model is given up


class ClusterUnreachable(RuntimeError):
    """Nothing answers at the address of the cluster."""


def check_address(config: RunConfig) -> None:
    """Look whether something listens where the cluster should be: Ray itself would try for minutes.

    Raises UserError for an address that is not a cluster's, ClusterUnreachable when nothing answers.
    """
    address = _address(config)
    if address.startswith(("http://", "https://")):
        raise UserError(
            f"the Ray address {address} is a dashboard's: send the job there with "
            "`ray job submit -- python -m jobs run ...`, or unset RAY_ADDRESS to run here"
        )
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit():
        return  # "local", "auto"
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except OSError as error:
        raise ClusterUnreachable(
            f"no Ray cluster answers at {address} ({error.strerror or error}): start its head, correct RAY_ADDRESS or "
            "ray.address, or unset it to run here"
        ) from None


def connect(config: RunConfig) -> None:
    """Join the configured or submitting cluster, else start a Ray that ends with this process.

    One that is connected already is used as it is. The local one listens on loopback only. Raises as `check_address`,
    and UserError where Ray cannot write what it needs to start.
    """
    address = _address(config)
    for name, value in (_SETTINGS | (_LOCAL_SETTINGS if address == "local" else {})).items():
        os.environ.setdefault(name, value)
    import ray

    if ray.is_initialized():
        return
    check_address(config)
    logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)  # announces its token on every start
    local: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
    on_sigterm = signal.getsignal(signal.SIGTERM)  # Ray puts one of its own in its place
    try:
        with _without_announcement():
            ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING, **local)
    except ConnectionError as error:
        reason = " ".join(str(error).split())
        raise ClusterUnreachable(f"cannot join the Ray cluster at {address}: {reason}") from error
    except OSError as error:
        home = os.path.expanduser("~")
        if not str(error.filename).startswith(home):
            raise
        reason = f"Ray keeps its token in {home}, which cannot be written"
        raise UserError(f"{reason}: set HOME to a folder of yours") from error
    except Exception as error:  # Ray has no class of its own for this
        if "timed out during startup" not in str(error):
            raise
        raise ClusterUnreachable("Ray did not start in time: this machine is too busy, run again later") from error
    finally:
        if on_sigterm is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, on_sigterm)


def _address(config: RunConfig) -> str:
    return config.ray.address or os.environ.get("RAY_ADDRESS") or "local"


@contextmanager
def _without_announcement() -> Iterator[None]:
    """Ray's C++ side says on stderr, below Python's, that it was given a log level; all else it says is passed on."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            said.seek(0)
            os.write(2, b"".join(line for line in said if b"Set ray log level" not in line))


def prepare_dataset(dataset: Dataset, name: str, config: RunConfig) -> None:
    """Name a pipeline for the dashboard, and let only its warnings through: the run shows its own progress."""
    dataset.set_name(name)
    dataset.context.enable_progress_bars = False
    dataset.context.execution_no_progress_timeout_s = PATIENCE * config.ray.no_progress_timeout_s
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    logging.getLogger("ray.data._internal.progress").setLevel(logging.ERROR)  # warns that it is off


@dataclass(frozen=True)
class Share:
    """The resources of one worker of a model: GPUs where the run uses them, else one CPU."""

    gpus: float
    cpus: float
    labels: tuple[tuple[str, str], ...] = ()
    nodes: tuple[str, ...] = ()  # Ray's ids of the nodes where its workers were counted; none of a cluster that grows
    others: tuple[str, ...] = ()  # of those that would do, once these are gone

    @property
    def size(self) -> float:
        return self.gpus or self.cpus

    def selectors(self) -> list[dict[str, str]]:
        """Label selectors for Ray: where workers go, and where they go instead once those nodes are gone.

        Ray would put them wherever there is room, which is not where the driver counted it: then two workers of one GPU
        take one of each node with two, and a worker of two fits nowhere.
        """
        anywhere = {key: f"in({','.join(values)})" for key, values in allowed(self.labels).items()}
        known = [{"ray.io/node-id": f"in({','.join(ids)})"} for ids in (self.nodes, self.others) if ids]
        return [*known, anywhere] if known or anywhere else []


def share_of(model: ModelConfig, on_gpu: bool, needs: Needs = ()) -> Share:
    """The resources of a worker of the model; `needs` are labels of its precisions beside those of the model."""
    # A GPU worker reserves no CPU: with few of them, that would starve the tasks that feed it.
    return Share(model.gpus, 0, tuple(sorted({*model.labels.items(), *needs}))) if on_gpu else Share(0, 1)


def uses_gpu(config: RunConfig) -> bool:
    """True where workers get GPUs: as the configuration says, or where the cluster has some."""
    import ray

    if config.device == "auto":
        grown = any(nodes.gpus for nodes in config.ray.nodes or ())
        return grown or ray.cluster_resources().get("GPU", 0) > 0
    return config.device == "cuda"


class Slots:
    """Worker slots of the cluster, counted on the driver by node: a worker's GPUs are on one node."""

    def __init__(
        self,
        nodes: Sequence[tuple[Mapping[str, str], float]],
        ids: Sequence[str] = (),
        precisions: Iterable[Needs] = (),
    ) -> None:
        """`nodes` are (labels, GPUs or CPUs) of each node; `ids` are Ray's, empty where the cluster has yet to grow.

        `precisions` are the labels that each precision of the run needs: a node that suits many is given out last.
        """
        self._nodes, self._ids = [(known(labels), size) for labels, size in nodes], ids
        self._precisions = list(precisions)
        self._free = [size for _, size in nodes]
        self._lock = threading.Lock()

    def room(self, share: Share) -> int:
        """The number of workers of this share that an empty cluster could hold."""
        return sum(_fitting(size, share.size) for labels, size in self._nodes if matches(labels, share.labels))

    def take(self, share: Share, fewest: int, most: int) -> list[int] | None:
        """The nodes of `fewest` to `most` new workers, as many as fit; None when not even the fewest do.

        `most` may be less than `fewest`: a run that continues may have work for one worker only.
        """
        with self._lock:
            taken: list[int] = []
            for node in self.able(share):
                taken += [node] * min(_fitting(self._free[node], share.size), most - len(taken))
            if len(taken) < min(fewest, most):
                return None
            for node in taken:
                self._free[node] -= share.size
            return taken

    def able(self, share: Share) -> list[int]:
        """Nodes that will do: first those that say so, and of them those that fewer precisions need."""

        def order(node: int) -> tuple[int, int]:
            labels = self._nodes[node][0]
            unsaid = sum(key not in labels for key, _ in share.labels)
            return unsaid, sum(matches(labels, needs) for needs in self._precisions)

        return sorted((n for n, (labels, _) in enumerate(self._nodes) if matches(labels, share.labels)), key=order)

    def placed(self, share: Share, taken: Sequence[int]) -> Share:
        """The share of workers that were counted on these nodes."""
        if not self._ids:
            return share
        matching = sorted(node for node in self.able(share) if self._nodes[node][1])
        nodes, others = (tuple(self._ids[node] for node in dict.fromkeys(own)) for own in (taken, matching))
        return replace(share, nodes=nodes, others=others)

    def give_back(self, share: Share, taken: Sequence[int]) -> None:
        with self._lock:
            for node in taken:
                self._free[node] += share.size


def cluster_slots(config: RunConfig, on_gpu: bool) -> Slots:
    """The slots of the connected cluster, or of what it is configured to grow to."""
    import ray

    precisions = [config.ray.needs((dtype,)) for dtype in config.ray.precisions]
    if config.ray.nodes is not None:
        kinds = [(nodes.labels, nodes.gpus if on_gpu else nodes.cpus, nodes.count) for nodes in config.ray.nodes]
        return Slots([(labels, size) for labels, size, count in kinds for _ in range(count)], (), precisions)
    kind = "GPU" if on_gpu else "CPU"
    alive = [node for node in ray.nodes() if node["Alive"]]
    nodes = [(node.get("Labels", {}), node["Resources"].get(kind, 0.0)) for node in alive]
    return Slots(nodes, [node["NodeID"] for node in alive], precisions)


def own_device() -> str:
    """The device of a worker's model: the GPUs that Ray gave it, else the CPU, whatever else the node has."""
    import torch

    ray = sys.modules.get("ray")
    given = ray is not None and ray.is_initialized() and ray.get_runtime_context().get_accelerator_ids().get("GPU")
    return "cuda" if given and torch.cuda.is_available() else "cpu"


def placement(share: Share) -> dict[str, Any]:
    """Ray's options of what runs on a share: a task, an actor, or the actors of a pipeline."""
    selectors = share.selectors()
    return {
        "num_gpus": share.gpus,
        "num_cpus": share.cpus,
        "label_selector": selectors[0] if selectors else None,
        "fallback_strategy": [{"label_selector": other} for other in selectors[1:]] or None,
        "runtime_env": _environment_of(share),
    }


def _environment_of(share: Share) -> dict[str, Any] | None:
    """Workers without a GPU must not see what a node of a cluster has."""
    import ray

    if share.gpus or not ray.cluster_resources().get("GPU"):
        return None
    return {"env_vars": {"CUDA_VISIBLE_DEVICES": ""}}


def _fitting(free: float, size: float) -> int:
    return int(free / size + 1e-6)
