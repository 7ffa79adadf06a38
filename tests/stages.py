"""The stages of a run as functions of (config, store), and the work that a stage would do."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from closelook.jobs.config import RunConfig
from closelook.jobs.plan.node import Plan, Run
from closelook.jobs.products.record import Product
from closelook.jobs.products.relevance import FINER, RELEVANCE
from closelook.jobs.runner import driver
from closelook.jobs.runner.driver import ModelWork
from closelook.jobs.stages.compute import compute, compute_plan
from closelook.jobs.stages.record import StageSummary
from closelook.jobs.store import Ledger, Store

select = partial(compute, stage="select")
attribute = partial(compute, stage="attribute")
prune = partial(compute, stage="prune")
perturb = partial(compute, stage="perturb")
controls = partial(compute, stage="controls")
neurons = partial(compute, stage="neurons")
ablations = partial(compute, stage="ablations")
evaluate = partial(compute, stage="evaluate")


def missing_work(
    config: RunConfig, ledger: Ledger, plan: Plan, products: Sequence[Product] = (RELEVANCE, *FINER.values())
) -> list[ModelWork]:
    """The work that is missing for the nodes of these products."""
    run = Run(config, plan, ledger)
    nodes = [node for product in products for node in product.nodes(run)]
    return driver.missing_work(run, products, [node for node in nodes if not ledger.is_done(node.artifact)])


def score_plan(config: RunConfig, plan: Plan, store: Store) -> StageSummary:
    """The stage evaluate of a run whose plan is made."""
    return compute_plan(Run(config, plan, Ledger(store)), "evaluate")
