"""A whole run: every stage in order, under the root's lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module

from jobs.config import RunConfig
from jobs.stage import StageSummary
from jobs.store import Store

STAGES = ("prepare", "attribute", "evaluate", "prune", "report")


def stage(name: str) -> Callable[[RunConfig, Store], StageSummary]:
    """The function of a stage, imported when it is needed: stages bring heavy libraries."""
    return getattr(import_module(f"jobs.{name}"), name)


def run(config: RunConfig, store: Store, stages: tuple[str, ...] = STAGES) -> Iterator[StageSummary]:
    """Run the stages one after the other, yielding what each did. Pruning runs only where the config asks for it.

    A stage with failures does not stop the next ones: they work on what is complete.
    """
    for name in stages:
        if name != "prune" or config.prune is not None:
            yield stage(name)(config, store)
