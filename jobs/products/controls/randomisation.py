"""Randomisation of weights (Adebayo et al. 2018): how much of a method's relevance outlives the trained model.

Samples are explained under the trained model and under models whose weights are random from the head down, for the same
target and foil. Planted methods must fail, the baseline must be at chance.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np

from evaluation.schema import RANDOMISATION as SCHEMA
from evaluation.schema import titled
from evaluation.scoring.controls import agreement
from jobs.plan.node import Part, Run
from jobs.products.controls.controlled import (
    ControlNode,
    Explaining,
    Maps,
    computed,
    control_nodes,
    expected,
    in_order,
    unexplained,
    units,
)
from jobs.products.record import Made, Opened, Product, Row

VERSION = 1  # raised when numbers change: stored ones of older versions are stale
FIRST, SECOND = 1, 2  # draws of random weights


def nodes(run: Run) -> Iterator[ControlNode]:
    """A node for each method in the controls."""
    depths = run.config.controls.depths if run.config.controls else None
    own_key = {"version": VERSION, "schema": titled(SCHEMA), "depths": depths}
    return control_nodes(run, "randomisation", own_key, depths=depths)


def compute(opened: Opened, parts: Sequence[Part], rows: Sequence[Row]) -> Mapping[Part, Made]:
    """The agreement of every sample with itself under random models, for every method and depth."""
    return computed(opened, parts, rows, lambda explaining, nodes, rows: _Randomising(explaining, nodes).of(rows))


@dataclass(frozen=True)
class _Randomising:
    """The randomisation of several methods, which share the random models."""

    explaining: Explaining
    nodes: Sequence[ControlNode]

    def of(self, rows: Sequence[Row]) -> dict[str, Made]:
        """The rows and rejects of every method."""
        opened = self.explaining.opened
        trained = self.explaining.maps(opened.view, rows, opened.options.seed)
        other = self._wholly_random(rows)
        requests = [node.requests[0] for node in self.nodes]
        rejects = {request.method: unexplained(rows, trained[request.method], request) for request in requests}
        entries: dict[str, list[dict[str, Any]]] = {name: [] for name in rejects}
        for depth, maps in self._randomised(rows):
            for name, method_entries in entries.items():
                kept = {sample: map_ for sample, map_ in trained[name].items() if sample not in rejects[name]}
                method_entries += _entries(depth, kept, maps[name], other[name] if depth["last"] else None)
        return {
            (name := node.artifact.method): in_order(node, SCHEMA, entries[name], "step", rejects[name])
            for node in self.nodes
        }

    def _randomised(self, rows: Sequence[Row]) -> Iterator[tuple[dict[str, Any], Maps]]:
        """(columns of the depth, the maps of all methods), the last depth first."""
        from lrp_core.interventions.randomised import depths_of, randomised

        view = self.explaining.opened.view
        seed, names = self.explaining.opened.options.seed, depths_of(view)
        chosen = chosen_depths(len(names), self.nodes[0].depths)
        with randomised(view, seed_of(seed, FIRST)) as models:
            for name, changed in models:
                step = names.index(name) + 1
                if step in chosen:
                    columns = {"depth": name, "step": step, "last": step == len(names)}
                    yield columns, self.explaining.maps(changed, rows, seed_of(seed, FIRST, step))

    def _wholly_random(self, rows: Sequence[Row]) -> Maps:
        """The maps under the second random model."""
        from lrp_core.interventions.randomised import randomised

        seed = seed_of(self.explaining.opened.options.seed, SECOND)
        with randomised(self.explaining.opened.view, seed) as models:
            return self.explaining.maps(next(models)[1], rows, seed)


def seed_of(*parts: int) -> int:
    """A seed made of these numbers: a run's seed, the draw of weights, and a depth where methods draw."""
    return int.from_bytes(sha256(repr(parts).encode()).digest()[:4])


def chosen_depths(count: int, depths: int | None) -> set[int]:
    """The numbers of the depths, from 1, that are looked at: the last, and others evenly before it.

    >>> sorted(chosen_depths(14, 4))
    [1, 5, 10, 14]
    """
    if depths is None or depths >= count:
        return set(range(1, count + 1))
    if depths == 1:
        return {count}
    return {1 + round(at * (count - 1) / (depths - 1)) for at in range(depths)}


def _entries(
    depth: Mapping[str, Any],
    trained: Mapping[str, np.ndarray],
    changed: Mapping[str, np.ndarray],
    other: Mapping[str, np.ndarray] | None,
) -> Iterator[dict[str, Any]]:
    """The rows of a method at a depth, without its variant; `other` are maps of the second random model."""
    for sample, map_ in trained.items():
        agreed = agreement(map_, changed[sample])
        architecture = None if other is None else agreement(changed[sample], other[sample]).signed
        correlations = {"signed": agreed.signed, "absolute": agreed.absolute, "architecture": architecture}
        yield {"sample_id": sample, **depth, "tokens": len(map_), **correlations, "flat": agreed.flat}


RANDOMISATION = Product(
    name="randomisation",
    title="randomisations",
    stage="controls",
    nodes=nodes,
    expected=expected,
    schema=lambda dtype: SCHEMA,
    units=units,
    compute=compute,
)
