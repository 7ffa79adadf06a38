"""The stages whose products are computed by workers, unit by unit.

These are all but prepare and report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from closelook.evaluation.schema import SchemaMismatch
from closelook.jobs.config import AblationsConfig, ControlsConfig, PerturbConfig, PruneConfig, RunConfig
from closelook.jobs.plan.cells import make_plan
from closelook.jobs.plan.node import Choice, Node, Run
from closelook.jobs.products.record import Product
from closelook.jobs.products.table import PRODUCTS, is_of_package
from closelook.jobs.runner.closing import rejected
from closelook.jobs.runner.driver import ModelWork, make, missing_work
from closelook.jobs.stages.record import STAGES, StageSummary
from closelook.jobs.store import Ledger, Store, StoreError
from closelook.jobs.store.lock import is_asked
from closelook.lrp_core.records.types import UserError

#: The settings of a stage that is asked for, if the config has none.
_DEFAULTS: dict[str, Callable[[], Any]] = {
    "prune": PruneConfig,
    "perturb": PerturbConfig,
    "ablations": AblationsConfig,
    "controls": ControlsConfig,
}
#: By stage, the config key without which it has nothing to do, and an example of its value.
_NEEDED = {"neurons": ("neurons", "neurons.tasks={sva: 100}"), "prune": ("heads", "heads={sva: 100}")}


def compute(config: RunConfig, store: Store, stage: str) -> StageSummary:
    """Compute the artifacts that a stage wants and that are not done yet.

    Raises UserError for a config that no run could carry out, and StoreError for a store of another schema version.
    """
    try:
        config = _with_defaults(config, stage)
        ledger = Ledger(store)
        return compute_plan(Run(config, make_plan(config, store, ledger=ledger), ledger), stage)
    except SchemaMismatch as error:
        raise StoreError(str(error)) from None


def compute_plan(run: Run, stage: str) -> StageSummary:
    """Compute the artifacts that a stage wants of a planned run and that are not done yet."""
    record = STAGES[stage]
    failures: list[str] = []
    waiting: list[str] = []
    planned: dict[Node, None] = {}
    missing: dict[Node, None] = {}
    for products in _order(stage):
        if is_asked(run.store):
            break
        nodes = [node for product in products for node in product.nodes(run)]
        to_make = [node for node in nodes if not _is_made(run, node)]
        ready = {node: all(map(run.ledger.is_done, (*node.made_of, *node.needs))) for node in to_make}
        for node, is_ready in ready.items():
            if is_ready and not node.artifact.is_keyed():  # the file will get other numbers
                run.ledger.forget(node.artifact)
        waiting += [line for node in to_make for line in _waits_for(run, node)]
        computable = [node for node, is_ready in ready.items() if is_ready]
        failures += make(run, products, computable, stage, record.counts, record.alone)
        planned |= dict.fromkeys(nodes)
        missing |= dict.fromkeys(to_make)
    return _summary(run, stage, list(planned), list(missing), failures, waiting)


def _summary(
    run: Run, stage: str, planned: Sequence[Node], missing: Sequence[Node], failures: list[str], waiting: list[str]
) -> StageSummary:
    """The result of a stage, from the nodes that it planned, those that were missing, and why some still are."""
    unprepared = (f"{model}: {task} is not prepared: run `closelook prepare`" for model, task in run.plan.unprepared)
    undecided = (f"{choice}: its options are not chosen: run `closelook select`" for choice in _undecided(run, stage))
    out_of_reach = [*run.plan.failures.values(), *unprepared, *undecided]
    made = tuple(node.artifact for node in missing if run.ledger.is_done(node.artifact))
    incomplete = [node.artifact for node in missing if not run.ledger.is_done(node.artifact)]
    lines = [*_counts(run, stage, planned, missing), *_told(run, stage, planned, missing)]
    if STAGES[stage].of_complete:
        lines += out_of_reach
        if waiting:
            lines.append(f"{len(waiting)} cells are not complete and have no scores: run `closelook attribute`")
    else:
        failures = [*out_of_reach, *failures, *waiting] or list(map(str, incomplete))
        if incomplete:
            title = PRODUCTS[incomplete[0].product].title
            lines.append(f"{len(incomplete)} {title} are not complete, among them {incomplete[0]}")
    skipped = len(planned) - len(missing)
    return StageSummary(stage, len(made), skipped, tuple(dict.fromkeys(failures)), tuple(lines), made)


def _with_defaults(config: RunConfig, stage: str) -> RunConfig:
    """The config; if it has no settings for the stage, with their defaults, since the stage was asked for."""
    key, example = _NEEDED.get(stage, ("", ""))
    if key and not getattr(config, key):
        raise UserError(f"config key {key!r} is not set: give numbers of samples, as {example}")
    default = config.benchmark if stage == "bench" else _DEFAULTS.get(stage)
    if default is None or getattr(config, stage) is not None:
        return config
    return config.model_copy(update={stage: default()})


def _order(stage: str) -> list[tuple[Product, ...]]:
    """The products of the stage in their turns; those of a turn share workers. Products of packages have the last."""
    turns: dict[tuple[bool, int], list[Product]] = {}
    for product in PRODUCTS.values():
        if product.stage == stage:
            added = is_of_package(product.name)
            if added and (product.compute is None or product.units is None):
                raise UserError(
                    f"product {product.name} of an installed package has no `units` or no `compute`: give both"
                )
            for turn in product.turns:
                turns.setdefault((added, turn), []).append(product)
    return [tuple(turns[turn]) for turn in sorted(turns)]


def works_of(run: Run, stage: str) -> list[ModelWork]:
    """The works of the first products that a stage would compute: the units that are missing, by model."""
    products = _order(stage)[0]
    nodes = [node for product in products for node in product.nodes(run) if not _is_made(run, node)]
    return missing_work(run, products, nodes)


def _is_made(run: Run, node: Node) -> bool:
    """True if there is nothing to do for the node."""
    if node.artifact.is_keyed():
        return run.ledger.is_done(node.artifact)
    return node.state(run.ledger) == "done"  # its file has no key in its name: other sources would replace its numbers


def _undecided(run: Run, stage: str) -> Iterator[Choice]:
    """Yield the choices among options for which the stage has to wait: `closelook select` has not made them."""
    settings = run.config.perturb
    for choice in run.plan.undecided:
        artifact = choice.artifact
        drawn = settings is not None and settings.takes(task=artifact.task, method=artifact.method)
        if stage == "attribute" or (stage == "perturb" and drawn):
            yield choice


def _waits_for(run: Run, node: Node) -> Iterator[str]:
    """Yield a line for each artifact that the node needs and that is not complete."""
    for artifact in (*node.made_of, *node.needs):
        if not run.ledger.is_done(artifact):
            yield f"{artifact} is not complete: run `closelook {PRODUCTS[artifact.product].stage}`"


def _counts(run: Run, stage: str, planned: Sequence[Node], todo: Sequence[Node]) -> Iterator[str]:
    """Yield a line for each product: how many of its artifacts were computed, and how many were up to date."""
    titles = {product.name: product.title for products in _order(stage) for product in products}
    for title in dict.fromkeys(titles.values()):
        of_title = [node for node in planned if titles[node.artifact.product] == title]
        lacking = [node for node in todo if titles[node.artifact.product] == title]
        made = sum(run.ledger.is_done(node.artifact) for node in lacking)
        if of_title:
            yield f"{made} {title} made, {len(of_title) - len(lacking)} were up to date"


def _told(run: Run, stage: str, planned: Sequence[Node], todo: Sequence[Node]) -> Iterator[str]:
    """Yield further lines of the summary: those of products, defects and rejects."""
    for product in dict.fromkeys(chain.from_iterable(_order(stage))):
        of_product = [[node for node in nodes if node.artifact.product == product.name] for nodes in (planned, todo)]
        yield from product.lines(run, *of_product)
    for node in todo:
        for name, count in (run.ledger.record(node.artifact) or {}).get("defects", {}).items():
            yield f"{node.artifact}: {count} times {name}, counted as wrong"
    yield from _rejected(run, todo)


def _rejected(run: Run, nodes: Iterable[Node]) -> list[str]:
    """Lines about rejects, one for each product, model, task and precision, with the methods that have them."""
    groups: dict[tuple[str, str], list[str]] = {}
    for node in nodes:
        record, at = run.ledger.record(node.artifact), node.artifact
        if record is not None and record.get("rejects"):
            title = f"{at.product} {at.model}/{at.task}/{at.dtype}"
            groups.setdefault((title, rejected(record)), []).append(at.method)
    return [f"{title}: rejected {rows} ({', '.join(methods)})" for (title, rows), methods in groups.items()]
