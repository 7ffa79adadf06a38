"""The records that travel between driver and workers: a unit's task, the settings of the run, accounts of shards."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from jobs.config import ModelConfig, RunConfig, configured
from jobs.plan.node import Part
from jobs.store import Written
from lrp_core.methods.record import Method


@dataclass(frozen=True)
class Account:
    """The content of a shard, as reported by the worker that wrote it, or as read from its file."""

    explained: int | None  # samples that have rows; None where rows are not of samples
    rejects: list[dict[str, Any]]  # rows of REJECT
    facts: dict[str, Any] = field(default_factory=dict)  # further entries of the manifest
    files: dict[str, Written] = field(default_factory=dict)  # by path: the shard, and what belongs to it
    batches_by_row: int = 0  # batches whose rows were computed one by one

    def to_json(self) -> str:
        """The account as JSON, for reports."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Account:
        """The account that `to_json` wrote."""
        entries = json.loads(text)
        return cls(**{**entries, "files": {path: Written(**file) for path, file in entries["files"].items()}})


@dataclass(frozen=True)
class Task:
    """A unit of work as it is sent to a worker, with the parts that are not committed yet."""

    product: str
    title: str
    dtype: str
    parts: tuple[Part, ...]
    cuts: tuple[int, ...]
    tokens: int
    token_budget: int
    size: int
    rows: tuple[Mapping[str, Any], ...] | None = None  # None: samples of the views are sent with the task

    @property
    def methods(self) -> dict[str, str]:
        """By the path of each part's shard: its method, or the task's title if it has none."""
        return {part.paths[0]: part.node.artifact.method or self.title for part in self.parts}


@dataclass(frozen=True)
class WorkerOptions:
    """The settings of a run that a worker needs."""

    seed: int
    max_attempts: int
    checkpoint: bool
    byte_budget: int | None
    methods: Mapping[str, Method]  # of the run, by their names there
    run: str  # tells the notes of this run's workers from those of earlier ones
    batch_limit_s: float = 0  # a batch that takes longer counts as hanging; 0: no limit

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that functions of methods may take."""
        return {"checkpoint": self.checkpoint, "byte_budget": self.byte_budget, "seed": self.seed}

    @classmethod
    def of(cls, config: RunConfig, model: ModelConfig | None) -> WorkerOptions:
        """The settings for workers of `model`; None: for work without a model."""
        # Without recomputation, autograd would keep the weights of every offloaded block alive.
        checkpoint = model is not None and (model.checkpoint or model.max_memory is not None)
        run = uuid.uuid4().hex
        methods, limit_s = configured(config), config.ray.no_progress_timeout_s
        return cls(config.seed, config.max_attempts, checkpoint, config.byte_budget, methods, run, limit_s)
