"""A unit as it travels to a worker, what the worker needs of the run, and its account of a shard."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jobs.config import ModelConfig, RunConfig
from jobs.config.methods import configured
from jobs.plan.node import Part
from lrp_core.method import Method

#: Of a shard: the number of samples that have rows, None where rows are not of samples; its rejects as rows of REJECT;
#: and further facts for the manifest.
Account = tuple[int | None, list[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class Task:
    """A unit as it travels to a worker, with the parts that are not committed yet."""

    product: str
    title: str
    dtype: str
    parts: tuple[Part, ...]
    cuts: tuple[int, ...]
    tokens: int
    token_budget: int
    size: int
    rows: tuple[Mapping[str, Any], ...] | None = None  # None: the samples beside the task


@dataclass(frozen=True)
class WorkerOptions:
    """The settings of a run that a worker needs."""

    seed: int
    max_attempts: int
    checkpoint: bool
    byte_budget: int | None
    methods: Mapping[str, Method]  # of the run, by their names there
    run: str  # tells the notes of this run's workers from those of earlier ones
    batch_limit_s: float = 0  # a batch that takes longer hangs; 0: any may take as long as it likes

    @classmethod
    def of(cls, config: RunConfig, model: ModelConfig | None) -> WorkerOptions:
        # Without recomputation, autograd would keep the weights of every offloaded block alive.
        checkpoint = model is not None and (model.checkpoint or model.max_memory is not None)
        run = uuid.uuid4().hex
        methods, limit_s = configured(config), config.ray.no_progress_timeout_s
        return cls(config.seed, config.max_attempts, checkpoint, config.byte_budget, methods, run, limit_s)
