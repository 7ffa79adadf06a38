"""The table of all products in the order in which a run makes them, by which they are counted, planned and removed.

A new product is a module with its record, and a line here; installed packages add products by the entry points
`closelook.products`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from closelook.jobs.plan.node import Node, Run
from closelook.jobs.products import benchmarks, curves, pruning, relevance, scores, trials, whole
from closelook.jobs.products.answers import ablations, sources
from closelook.jobs.products.controls import randomisation, shapley
from closelook.jobs.products.neurons import contexts, heatmaps, knockouts
from closelook.jobs.products.record import Product
from closelook.jobs.store import Artifact, Ledger, artifact_in, key_in
from closelook.lrp_core.records.registry import OURS, Registry

PRODUCTS: Registry[Product] = Registry(
    "product",
    whole.SAMPLES,
    whole.VIEWS,
    trials.TRIALS,
    relevance.RELEVANCE,
    *relevance.FINER.values(),
    scores.SCORES,
    scores.LAYER_SCORES,
    pruning.PRUNING,
    curves.CURVES,
    ablations.ABLATIONS,
    sources.SOURCES,
    shapley.SHAPLEY,
    randomisation.RANDOMISATION,
    contexts.CONTEXTS,
    knockouts.KNOCKOUTS,
    heatmaps.HEATMAPS,
    benchmarks.BENCH,
    whole.REPORT,
    group="closelook.products",
    record_class=Product,
)


def nodes(run: Run) -> Iterator[tuple[Product, Node]]:
    """Yield every artifact that the run wants, as (product, node), product by product."""
    for product in PRODUCTS.values():
        for node in product.nodes(run):
            yield product, node


def of_packages() -> list[Product]:
    """The products that installed packages add."""
    return [product for product in PRODUCTS.values() if is_of_package(product.name)]


def is_of_package(name: str) -> bool:
    """True if `name` is a product that an installed package adds, not one of closelook's own."""
    return name in PRODUCTS and PRODUCTS.owner(name) != OURS


def stale(ledger: Ledger, artifacts: Iterable[Artifact]) -> list[tuple[Artifact, str]]:
    """The manifests that a planned artifact makes useless, as (planned artifact, name of the manifest).

    Such a manifest stands at the place of the artifact with another key: inputs, settings or versions have changed.
    """
    outdated, named = list[tuple[Artifact, str]](), {artifact.name: artifact for artifact in artifacts}
    for name, artifact in named.items():
        record = ledger.latest(artifact) if artifact.replaces else None
        if record is not None and key_in(record) != artifact.key:
            outdated.append((artifact, name))
    unplanned = [(name, artifact_in(record)) for name, record in ledger.records() if name not in named]
    if unplanned:
        places = {artifact.place: artifact for artifact in named.values() if not artifact.replaces}
        for name, entered in unplanned:
            if entered.place in places:
                outdated.append((places[entered.place], name))
    return outdated
