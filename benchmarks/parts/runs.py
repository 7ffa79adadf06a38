"""Configs of small runs on the CPU, with tasks of the demo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jobs.config import RunConfig

Limits = Mapping[str, int | None]  # samples by task
Facts = Mapping[str, Any]
METHODS = ("attnlrp", "gradient_x_input", "random")


def small_run(
    root: str, limits: Limits, models: Sequence[Facts], methods: Sequence[str | Facts] = METHODS, **settings: Any
) -> RunConfig:
    """The config of a run. `limits` are its tasks with the number of samples of each; None means all.

    `settings` are further keys of the config.
    """
    tasks = {task: {"source": "demo", "limit": limit} for task, limit in limits.items()}
    made = {"name": "bench", "root": root, "device": "cpu", "tasks": tasks, "models": models, "methods": methods}
    return RunConfig.model_validate({**made, **settings})
