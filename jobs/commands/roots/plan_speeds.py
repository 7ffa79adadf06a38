"""The speed of the GPUs on which a model runs in a precision: of suitable `ray.nodes`, or an assumed one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jobs.cluster.labels import FLOAT64, SLOW, in_words, known, matches
from jobs.cluster.slots import share_of
from jobs.config import ModelConfig, NodesConfig, RunConfig

#: Assumed operations per second that one 80 GB accelerator sustains; `closelook plan` prints the assumption.
FLOPS = {"bfloat16": 1.5e14, "float16": 1.5e14, "float32": 2e13, "float64": 1e13}
SLOW_FLOAT64 = FLOPS["float32"] / 64  # of GPUs with slow float64, such as an L4: 1 float64 unit to 64 of float32


def flops_of(nodes: NodesConfig, dtype: str) -> float:
    """The operations per second that a GPU of these nodes sustains: as configured (`tflops`), or as assumed."""
    configured: Mapping[Any, float] = nodes.tflops
    if dtype in configured:
        return 1e12 * configured[dtype]
    is_slow = dtype == FLOAT64 and known(nodes.labels).get(FLOAT64) == SLOW
    return SLOW_FLOAT64 if is_slow else FLOPS[dtype]


def speed(config: RunConfig, model: ModelConfig, dtype: str) -> float | None:
    """The operations per second of one GPU for the model in this precision; None if no node can hold a worker.

    It is the mean over all suitable GPUs, since they share the units. Without GPUs in `ray.nodes`, or on CPUs, it is
    that of FLOPS.
    """
    nodes = [kind for kind in config.ray.nodes or () if kind.gpus]
    if not nodes or config.device == "cpu":
        return FLOPS[dtype]
    share = share_of(model, on_gpu=True, needs=config.ray.needs((dtype,)))
    gpus = flops = 0.0
    for kind in nodes:
        if kind.gpus >= share.gpus and matches(known(kind.labels), share.labels):
            gpus += kind.count * kind.gpus
            flops += kind.count * kind.gpus * flops_of(kind, dtype)
    return flops / gpus if gpus else None


def without_nodes(config: RunConfig) -> Iterator[str]:
    """A line for each model and precision for which none of `ray.nodes` is suitable."""
    for model in config.models:
        dtypes = {dtype for task in config.tasks_for(model) for dtype in model.dtypes_for(task)}
        for dtype in sorted(dtypes):
            if speed(config, model, dtype) is None:
                labels = in_words(share_of(model, on_gpu=True, needs=config.ray.needs((dtype,))).labels)
                needs = f"{model.gpus:g} GPU" + (f" and {labels}" if labels else "")
                yield f"model {model.name} in {dtype}: none of ray.nodes has {needs}"
