"""Configs of small runs on the CPU, over tasks of the demo."""

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
    """A run of these tasks, of so many samples each (None: all), with further keys of a config in `settings`."""
    tasks = {task: {"source": "demo", "limit": limit} for task, limit in limits.items()}
    made = {"name": "bench", "root": root, "device": "cpu", "tasks": tasks, "models": models, "methods": methods}
    return RunConfig.model_validate({**made, **settings})
