"""The speed of the GPUs that a model runs on in a precision: those of `ray.nodes` that will do, or an assumed one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jobs.cluster.labels import FLOAT64, SLOW, in_words, known, matches
from jobs.cluster.slots import share_of
from jobs.config import ModelConfig, NodesConfig, RunConfig

#: Sustained operations per second of one 80 GB accelerator at these batch sizes, an assumption that is printed.
FLOPS = {"bfloat16": 1.5e14, "float16": 1.5e14, "float32": 2e13, "float64": 1e13}
SLOW_FLOAT64 = FLOPS["float32"] / 64  # where float64 is known to be slow: as an L4, of whose units one of 64 knows it


def flops_of(nodes: NodesConfig, dtype: str) -> float:
    """Operations per second that a GPU of such nodes sustains, from the configuration or by assumption."""
    configured: Mapping[Any, float] = nodes.tflops
    if dtype in configured:
        return 1e12 * configured[dtype]
    is_slow = dtype == FLOAT64 and known(nodes.labels).get(FLOAT64) == SLOW
    return SLOW_FLOAT64 if is_slow else FLOPS[dtype]


def speed(config: RunConfig, model: ModelConfig, dtype: str) -> float | None:
    """Operations per second of one GPU for the model in this precision; None where no node can hold a worker.

    The mean over all GPUs that can, since they share the units. Without GPU nodes in the config, or on CPUs, it is what
    FLOPS assumes of one accelerator.
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
    """A line for each model and precision that none of `ray.nodes` will do for."""
    for model in config.models:
        dtypes = {dtype for task in config.tasks_for(model) for dtype in model.dtypes_for(task)}
        for dtype in sorted(dtypes):
            if speed(config, model, dtype) is None:
                labels = in_words(share_of(model, on_gpu=True, needs=config.ray.needs((dtype,))).labels)
                needs = f"{model.gpus:g} GPU" + (f" and {labels}" if labels else "")
                yield f"model {model.name} in {dtype}: none of ray.nodes has {needs}"
