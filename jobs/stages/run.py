"""A whole run: every stage in order, under the root's lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a mistake in a config is told before anything heavy is imported
    from jobs.config import RunConfig
    from jobs.stages.summary import StageSummary
    from jobs.store import Store

STAGES = ("prepare", "attribute", "evaluate", "prune", "bench", "report")


def stage(name: str) -> Callable[[RunConfig, Store], StageSummary]:
    """The function of a stage, imported when it is needed: stages bring heavy libraries."""
    return getattr(import_module(f"jobs.stages.{name}"), name)


def run(config: RunConfig, store: Store, stages: tuple[str, ...] = STAGES) -> Iterator[StageSummary]:
    """Run the stages one after the other, yielding what each did. Of several, `prune` and `bench` must be configured.

    A stage with failures does not stop the next ones: they work on what is complete.
    """
    optional = {"prune": config.prune, "bench": config.bench}
    for name in stages:
        if len(stages) == 1 or optional.get(name, config) is not None:
            yield stage(name)(config, store)
