"""The products of a run. Whoever counts, plans or removes artifacts goes through the table.

A new product is a module with its record, and a line here; installed packages add products by the entry points
`closelook.products`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from jobs.plan.node import Node, Run
from jobs.products import (
    contexts,
    curves,
    heatmaps,
    knockouts,
    measurements,
    pages,
    prepared,
    pruning,
    randomisation,
    relevance,
    rewritten,
    scores,
    shapley,
    trials,
    writings,
)
from jobs.products.record import Product
from jobs.store import Artifact, Ledger
from jobs.store.ledger import artifact_in, key_in
from lrp_core.plugins import Extended
from lrp_core.registry import OURS, Registry

PRODUCTS: Extended[Product] = Extended(
    Registry(
        "product",
        prepared.SAMPLES,
        prepared.VIEWS,
        trials.TRIALS,
        relevance.RELEVANCE,
        relevance.HEADS,
        relevance.LAYERS,
        relevance.LABELS,
        relevance.NEURONS,
        scores.SCORES,
        scores.LAYER_SCORES,
        pruning.PRUNING,
        curves.CURVES,
        randomisation.RANDOMISATION,
        rewritten.REWRITTEN,
        shapley.SHAPLEY,
        contexts.CONTEXTS,
        heatmaps.HEATMAPS,
        knockouts.KNOCKOUTS,
        writings.WRITINGS,
        measurements.BENCH,
        pages.REPORT,
    ),
    "closelook.products",
    Product,
)


def nodes(run: Run) -> Iterator[tuple[Product, Node]]:
    """Every node that the run wants, product by product."""
    for product in PRODUCTS.values():
        for node in product.nodes(run):
            yield product, node


def of_packages() -> list[Product]:
    """The products of installed packages."""
    return [product for product in PRODUCTS.values() if PRODUCTS.owner(product.name) != OURS]


def stale(ledger: Ledger, artifacts: Iterable[Artifact]) -> list[tuple[Artifact, str]]:
    """(wanted artifact, name of a manifest of another key in its place)."""
    places = {artifact.place: artifact for artifact in artifacts}
    outdated = []
    for artifact in places.values():
        record = ledger.latest(artifact) if artifact.replaces else None
        if record is not None and key_in(record) != artifact.key:
            outdated.append((artifact, artifact.name))
    for name, record in ledger.records():
        entered = artifact_in(record)
        here = None if entered is None else places.get(entered.place)
        if here is not None and not here.replaces and key_in(record) != here.key:
            outdated.append((here, name))
    return outdated
