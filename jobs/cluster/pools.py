"""Ray: joining or starting a cluster, and the options of actors and tasks."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from jobs.cluster.slots import Share, Workers
from jobs.config import RunConfig
from lrp_core.records.types import UserError

if TYPE_CHECKING:
    from ray.data import Dataset

# Ray reads these when it is imported or started.
SETTINGS = {
    "RAY_DATA_PARQUET_FOOTER_NUM_ACTORS": "1",  # 32 by default, for every read
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",  # workers without a GPU see none
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_AUTO_CONNECT": "0",  # a thread that outlives the connection must not start a Ray of its own
    # Ray's C++ side calls an error what Ray Data does on purpose: restartable actors whose arguments are objects.
    "RAY_BACKEND_LOG_LEVEL": "fatal",
}
# A Ray that takes this machine for one that cannot be part of a cluster binds every port to loopback.
# It warns of four times as many processes as it may start at once, by default one a core: few pools reach that.
LOCAL_SETTINGS = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_worker_maximum_startup_concurrency": "8"}


AHEAD_BYTES = 256 * 2**20  # of the object store, a worker: units of a pipeline that are read and not yet computed
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
            "`closelook submit`, or unset RAY_ADDRESS to run here"
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
    for name, value in (SETTINGS | (LOCAL_SETTINGS if address == "local" else {})).items():
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
    """Drop the announcement of a log level that Ray's C++ code writes to stderr; other lines are passed on."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as captured:
        os.dup2(captured.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            captured.seek(0)
            os.write(2, b"".join(line for line in captured if b"Set ray log level" not in line))


def prepare_dataset(dataset: Dataset, name: str, config: RunConfig, workers: Workers) -> None:
    """Name a pipeline for the dashboard, bound what it reads ahead, and let only its warnings through.

    The run shows its own progress.
    """
    from ray.data import ExecutionResources

    dataset.set_name(name)
    ahead = ExecutionResources.for_limits(object_store_memory=AHEAD_BYTES * workers.most)
    dataset.context.execution_options.resource_limits = ahead
    dataset.context.enable_progress_bars = False
    dataset.context.execution_no_progress_timeout_s = PATIENCE * config.ray.no_progress_timeout_s
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    logging.getLogger("ray.data._internal.progress").setLevel(logging.ERROR)  # warns that it is off


def let_grow(dataset: Dataset, share: Share, workers: Workers) -> None:
    """Let the only pool of a pipeline have as many workers as `workers` says, also while it runs.

    Ray Data looks at the limits of a data set every second, and starts another worker while all have enough to do.
    """
    from ray.data import ExecutionResources

    kind = "gpu" if share.gpus else "cpu"
    dataset.context.autoscaling_config.actor_pool_util_downscaling_threshold = 0  # a model that is open stays open

    def limit(size: int) -> None:
        ahead = AHEAD_BYTES * workers.most
        limits = ExecutionResources.for_limits(object_store_memory=ahead, **{kind: size * share.size})
        dataset.context.execution_options.resource_limits = limits

    workers.heed(limit)


def uses_gpu(config: RunConfig) -> bool:
    """True where workers get GPUs: as the configuration says, or where the cluster has some."""
    import ray

    if config.device == "auto":
        grown = any(nodes.gpus for nodes in config.ray.nodes or ())
        return grown or ray.cluster_resources().get("GPU", 0) > 0
    return config.device == "cuda"


def own_device() -> str:
    """The device of a worker's model: the GPUs that Ray gave it, else the CPU, whatever else the node has."""
    import torch

    ray = sys.modules.get("ray")
    has_gpu = ray is not None and ray.is_initialized() and ray.get_runtime_context().get_accelerator_ids().get("GPU")
    return "cuda" if has_gpu and torch.cuda.is_available() else "cpu"


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
