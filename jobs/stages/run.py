"""The stages of a run, in order, and the summary that each returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jobs.config import RunConfig
    from jobs.store import Store


@dataclass(frozen=True)
class StageSummary:
    """The result of a stage: artifacts that it computed and that were complete before, and a line for each failure."""

    stage: str
    computed: int = 0
    skipped: int = 0
    failures: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()  # what the screen shows, one fact a line

    @property
    def complete(self) -> bool:
        return not self.failures


@dataclass(frozen=True)
class Stage:
    """A command that makes the products of its name, each by its `make` or by workers."""

    name: str
    about: str  # what its command does
    setting: str | None = None  # key of the config without which a whole run leaves it out
    own_command: bool = False  # the command line has a function for it, with options of its own
    planned: bool = False  # `closelook plan` says what it will cost
    counts: str = "samples"  # what the progress of its workers counts
    of_complete: bool = False  # it makes what it can of what is complete: what is not is no failure of the stage


#: In the order of a run.
STAGES = {
    stage.name: stage
    for stage in (
        Stage("prepare", "Read the sources, annotate evidence, tokenise."),
        Stage(
            "select",
            "Choose the options that lists leave open, by faithfulness.",
            setting="select",
            planned=True,
        ),
        Stage("attribute", "Compute the relevance that is missing.", planned=True, counts="rows"),
        Stage("evaluate", "Score complete relevance against the evidence.", of_complete=True),
        Stage("prune", "Draw the head pruning curves.", setting="prune", counts="curves"),
        Stage(
            "perturb",
            "Draw the faithfulness curves: what models say as tokens go.",
            setting="perturb",
            planned=True,
        ),
        Stage(
            "controls",
            "Hold methods against controls: is what they say about the model at all?",
            setting="controls",
        ),
        Stage(
            "neurons",
            "Knock neurons out, by what methods say of them.",
            setting="neurons",
            own_command=True,
        ),
        Stage("bench", "Measure the run's own models.", setting="bench", own_command=True),
        Stage("report", "Write tables, figures and pages."),
    )
}


def function_of(stage: str) -> Callable[[RunConfig, Store], StageSummary]:
    """The stage's function, imported when it is needed: stages bring heavy libraries."""
    from jobs.products import PRODUCTS
    from jobs.stages.compute import ORDER, compute

    if stage in ORDER:
        return partial(compute, stage=stage)
    make = next(product.make for product in PRODUCTS.values() if product.stage == stage and product.make)
    module, _, name = make.partition(":")
    return getattr(import_module(module), name)


def run(config: RunConfig, store: Store, stages: Iterable[str] = STAGES) -> Iterator[StageSummary]:
    """Run the stages one after the other, yielding what each did. Of several, those with a setting must have it.

    A stage with failures does not stop the next ones: they work on what is complete. `closelook stop` does.
    """
    from jobs.cluster.hosts import kept_hosts
    from jobs.store.lock import is_asked

    names = list(stages)
    with kept_hosts():
        for name in names:
            stage = STAGES[name]
            if len(names) > 1 and stage.setting is not None and getattr(config, stage.setting) is None:
                continue
            summary = function_of(name)(config, store)
            store.pack_manifests()
            yield summary
            if is_asked(store):
                return


def not_complete(config: RunConfig, store: Store, stages: Iterable[str]) -> list[str]:
    """A line for each product of these stages of which something planned is not complete, by a fresh look."""
    from jobs.plan.cells import make_plan
    from jobs.plan.node import Run
    from jobs.products import PRODUCTS
    from jobs.store import Ledger

    run, names, lines = Run(config, make_plan(config, store), Ledger(store)), set(stages), []
    for product in PRODUCTS.values():
        nodes = list(product.nodes(run)) if product.stage in names else []
        lacking = [node.artifact for node in nodes if node.state(run.ledger) != "done"]
        if lacking:
            counted = f"{len(lacking)} of {len(nodes)} {product.title} are not complete"
            lines.append(f"{counted}, among them {lacking[0]}: run `closelook run` again")
    return lines
