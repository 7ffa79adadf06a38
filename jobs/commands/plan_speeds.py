"""How fast the GPUs are that a model runs on in a precision: those of `ray.nodes` that will do, or an assumed one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jobs.cluster.labels import FLOAT64, SLOW, in_words, known, matches
from jobs.cluster.pools import share_of
from jobs.config import ModelConfig, NodesConfig, RunConfig

Measured = Mapping[tuple[str, str, str], float]  # seconds per token, by model, precision and pass

#: Sustained operations per second of one 80 GB accelerator at these batch sizes, an assumption that is printed.
FLOPS = {"bfloat16": 1.5e14, "float16": 1.5e14, "float32": 2e13, "float64": 1e13}
SLOW_FLOAT64 = FLOPS["float32"] / 64  # where float64 is known to be slow: as an L4, of whose units one of 64 knows it


def flops_of(nodes: NodesConfig, dtype: str) -> float:
    """Operations per second that one GPU of such nodes sustains: what the configuration says, or assumed."""
    told: Mapping[Any, float] = nodes.tflops
    if dtype in told:
        return 1e12 * told[dtype]
    return SLOW_FLOAT64 if dtype == FLOAT64 and known(nodes.labels).get(FLOAT64) == SLOW else FLOPS[dtype]


def speed(config: RunConfig, model: ModelConfig, dtype: str) -> float | None:
    """Operations per second of a GPU where the model runs in this precision; None where no node will do.

    Of several kinds of nodes it is the mean over their GPUs, which share the units.
    """
    nodes = [kind for kind in config.ray.nodes or () if kind.gpus]
    if not nodes or config.device == "cpu":
        return FLOPS[dtype]
    share = share_of(model, True, config.ray.needs((dtype,)))
    fit = [kind for kind in nodes if kind.gpus >= share.gpus and matches(known(kind.labels), share.labels)]
    gpus = sum(kind.count * kind.gpus for kind in fit)
    return sum(kind.count * kind.gpus * flops_of(kind, dtype) for kind in fit) / gpus if gpus else None


def without_nodes(config: RunConfig) -> Iterator[str]:
    """A line for each model and precision that none of `ray.nodes` will do for."""
    for model in config.models:
        for dtype in sorted({dtype for task in config.tasks_for(model) for dtype in model.dtypes_for(task)}):
            if speed(config, model, dtype) is None:
                needs = in_words(share_of(model, True, config.ray.needs((dtype,))).labels)
                wanted = f"{model.gpus:g} GPU" + (f" and {needs}" if needs else "")
                yield f"model {model.name} in {dtype}: none of ray.nodes has {wanted}"
