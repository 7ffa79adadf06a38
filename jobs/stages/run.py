"""A run: its stages in order, and what they leave incomplete."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from closelook.jobs.cluster.executor import kept_hosts
from closelook.jobs.config import RunConfig
from closelook.jobs.plan.cells import make_plan
from closelook.jobs.plan.node import Run
from closelook.jobs.products.table import PRODUCTS
from closelook.jobs.stages.compute import compute
from closelook.jobs.stages.record import STAGES, StageSummary
from closelook.jobs.store import Ledger, Store
from closelook.jobs.store.lock import is_asked
from closelook.lrp_core.lazy import imported_object


def function_of(stage: str) -> Callable[[RunConfig, Store], StageSummary]:
    """The function of a stage, imported only now since stages need heavy libraries."""
    first = next(product for product in PRODUCTS.values() if product.stage == stage)
    return partial(compute, stage=stage) if first.make is None else imported_object(first.make)


def run(config: RunConfig, store: Store, stages: Iterable[str] = STAGES) -> Iterator[StageSummary]:
    """Run the stages in order, and yield the summary of each. Of several, those whose setting is missing are skipped.

    A stage with failures does not stop the next ones, which work on what is complete. `closelook stop` ends the run
    after the stage.
    """
    names = list(stages)
    with kept_hosts():
        for name in names:
            stage = STAGES[name]
            if len(names) > 1 and stage.setting is not None and getattr(config, stage.setting) is None:
                continue
            yield function_of(name)(config, store)
            if is_asked(store):
                return


def not_complete(config: RunConfig, store: Store, stages: Iterable[str]) -> list[str]:
    """A line for each product of these stages with planned artifacts that are not complete; plans anew."""
    run, names, lines = Run(config, make_plan(config, store), Ledger(store)), set(stages), []
    for product in PRODUCTS.values():
        nodes = list(product.nodes(run)) if product.stage in names else []
        lacking = [node.artifact for node in nodes if node.state(run.ledger) != "done"]
        if lacking:
            counted = f"{len(lacking)} of {len(nodes)} {product.title} are not complete"
            lines.append(f"{counted}, among them {lacking[0]}: run `closelook run --root {store.root}` again")
    return lines
