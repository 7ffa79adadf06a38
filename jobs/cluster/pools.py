"""Connects to a Ray cluster or starts one, and sets the options of its pools of workers; the works of pools."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from closelook.jobs.cluster.slots import Share
from closelook.jobs.config import ModelConfig, RunConfig
from closelook.lrp_core.records.types import UserError

if TYPE_CHECKING:
    from ray.data import Dataset

    from closelook.jobs.cluster.reports import Report

# Environment variables that Ray reads when it is imported or started.
SETTINGS = {
    "RAY_DATA_PARQUET_FOOTER_NUM_ACTORS": "1",  # the default is 32, in every read
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",  # workers without a GPU see none
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_AUTO_CONNECT": "0",  # a thread that outlives the connection must not start a new Ray
    # Ray's C++ code logs as an error what Ray Data does on purpose: restartable actors whose arguments are objects.
    "RAY_BACKEND_LOG_LEVEL": "fatal",
}
# With the first, Ray takes this machine for one that cannot be part of a cluster, and binds every port to loopback.
# The second is how many processes start at once, by default one per core; Ray warns at four times as many processes.
LOCAL_SETTINGS = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_worker_maximum_startup_concurrency": "8"}
AHEAD_BYTES = 256 * 2**20  # of units that are read but not yet computed, for each worker of a pipeline
PATIENCE = 4  # times `ray.no_progress_timeout_s` before a model is given up: first a batch, then a row of it may hang

Reader = Callable[[], Iterator[Any]]


@dataclass(frozen=True, eq=False)
class Work:
    """The work of a pool of workers: the units of a model."""

    name: str  # shown in progress and failures
    model: ModelConfig
    worker: Callable[..., Any]  # class of the workers: an instance is called with a unit's table, commits and reports
    arguments: tuple[Any, ...]  # for the worker's constructor
    size: int  # rows of all units together, as reports count rows
    units: int = 1  # more workers than units would be idle
    #: Makes the reader, which yields the tables of units one by one, so that samples are not in memory before their
    #: turn. The reader may be pickled, and run in another process of this machine.
    reader: Callable[[], Reader] = lambda: _no_units
    on_report: Callable[[Report], None] = lambda report: None  # called with the report of each unit
    on_end: Callable[[], Iterable[str]] = lambda: ()  # called once when the work has ended; returns failures


def _no_units() -> Iterator[Any]:
    """The reader of a work without units."""
    return iter(())


class ClusterUnreachable(RuntimeError):
    """Nothing answers at the address of the cluster."""


def check_address(config: RunConfig) -> None:
    """Check that something listens at the cluster's address, for which Ray itself would try for minutes.

    Raises UserError for an address that is not a cluster's, ClusterUnreachable if nothing answers.
    """
    address = _address(config)
    if address.startswith(("http://", "https://")):
        raise UserError(
            f"{address} is the address of a Ray dashboard, not of a cluster: send the job there with "
            "`closelook submit`, or unset RAY_ADDRESS and ray.address to run here"
        )
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit():
        return  # "local" or "auto", which name no host
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except OSError as error:
        raise ClusterUnreachable(
            f"no Ray cluster answers at {address} ({error.strerror or error}): start its head, correct RAY_ADDRESS or "
            "ray.address, or unset it to run here"
        ) from None


def connect(config: RunConfig) -> None:
    """Join the cluster at `ray.address` or RAY_ADDRESS, else start a local Ray that ends with this process.

    If Ray is connected already, nothing happens. A local Ray listens on loopback only. Raises as `check_address` does,
    and UserError if Ray cannot write the files that it needs to start.
    """
    address = _address(config)
    for name, value in (SETTINGS | (LOCAL_SETTINGS if address == "local" else {})).items():
        os.environ.setdefault(name, value)
    import ray

    if ray.is_initialized():
        return
    check_address(config)
    logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)  # it logs its token at every start
    local: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
    on_sigterm = signal.getsignal(signal.SIGTERM)  # Ray replaces the handler
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
    except Exception as error:  # Ray has no class for this error
        if "timed out during startup" not in str(error):
            raise
        raise ClusterUnreachable("Ray did not start in time: this machine is too busy, run again later") from error
    finally:
        if on_sigterm is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, on_sigterm)


def _address(config: RunConfig) -> str:
    """The address of the cluster: `ray.address`, else RAY_ADDRESS, else "local"."""
    return config.ray.address or os.environ.get("RAY_ADDRESS") or "local"


@contextmanager
def _without_announcement() -> Iterator[None]:
    """Drop the line "Set ray log level" that Ray's C++ code writes to stderr inside the block; keep all others.

    C++ code writes to the file descriptor, so it is the descriptor that is redirected, not `sys.stderr`.
    """
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


def prepare_dataset(dataset: Dataset, name: str, config: RunConfig, share: Share) -> None:
    """Set a pipeline's name on the dashboard, its limits of read-ahead and time, and silence its progress.

    Only warnings of Ray Data are logged, since the run prints its own progress.
    """
    from ray.data import ExecutionResources

    dataset.set_name(name)
    ahead = ExecutionResources.for_limits(object_store_memory=AHEAD_BYTES * share.most)
    dataset.context.execution_options.resource_limits = ahead
    dataset.context.autoscaling_config.actor_pool_util_downscaling_threshold = 0  # never close an open model
    dataset.context.enable_progress_bars = False
    dataset.context.execution_no_progress_timeout_s = PATIENCE * config.ray.no_progress_timeout_s
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    logging.getLogger("ray.data._internal.progress").setLevel(logging.ERROR)  # warns that it is off


def uses_gpu(config: RunConfig) -> bool:
    """True if workers get GPUs: `device: cuda`, or `device: auto` if the cluster has or can start nodes with GPUs."""
    import ray

    if config.device == "auto":
        grown = any(nodes.gpus for nodes in config.ray.nodes or ())
        return grown or ray.cluster_resources().get("GPU", 0) > 0
    return config.device == "cuda"


def own_device() -> str:
    """The device of a worker's model: "cuda" if Ray gave this worker GPUs and torch sees them, else "cpu"."""
    import torch

    ray = sys.modules.get("ray")
    has_gpu = ray is not None and ray.is_initialized() and ray.get_runtime_context().get_accelerator_ids().get("GPU")
    return "cuda" if has_gpu and torch.cuda.is_available() else "cpu"


def placement(share: Share) -> dict[str, Any]:
    """Ray's options for a task, an actor or the actors of a pipeline that get the resources of `share`."""
    selectors = share.selectors()
    fallbacks = [{"label_selector": other} for other in selectors[1:]]
    return {
        "num_gpus": share.gpus,
        "num_cpus": share.cpus,
        "label_selector": selectors[0] if selectors else None,
        "fallback_strategy": fallbacks or None,
        "runtime_env": _environment_of(share),
    }


def _environment_of(share: Share) -> dict[str, Any] | None:
    """Ray's runtime environment for workers with `share`: those without GPUs must not see the GPUs of their node."""
    import ray

    if share.gpus or not ray.cluster_resources().get("GPU"):
        return None
    return {"env_vars": {"CUDA_VISIBLE_DEVICES": ""}}
