"""Randomisation of weights (Adebayo et al. 2018): does relevance change when weights become random?

Samples are explained under the trained model and under models whose weights are random from the head down to a depth,
for the same target and foil. Relevance that stays the same does not depend on what the model learned. Planted methods
must fail, the baseline must be at chance.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import Any

from closelook.evaluation.schema import RANDOMISATION as SCHEMA
from closelook.evaluation.schema import titled
from closelook.evaluation.scoring.controls import agreement
from closelook.jobs.plan.node import Run
from closelook.jobs.products.controls.controlled import (
    BySample,
    ControlNode,
    Explaining,
    Maps,
    computed,
    control_nodes,
    in_order,
    units,
)
from closelook.jobs.products.record import Made, Product, Row

VERSION = 1  # raised when numbers change: stored ones of older versions are stale
FIRST, SECOND = 1, 2  # two random models


def nodes(run: Run) -> Iterator[ControlNode]:
    """A node for each controlled method."""
    depths = run.config.controls.depths if run.config.controls else None
    control_key = {"version": VERSION, "schema": titled(SCHEMA), "depths": depths}
    return control_nodes(run, "randomisation", control_key, depths=depths)


def _agreements(explaining: Explaining, nodes: Sequence[ControlNode], rows: Sequence[Row]) -> dict[str, Made]:
    """By method, how relevance under random models agrees with that under the trained model, sample by sample."""
    trained, rejects = explaining.trained(rows)
    other = _wholly_random(explaining, rows)
    entries: dict[str, list[Row]] = {name: [] for name in trained}
    for depth, maps in _randomised(explaining, rows, nodes[0].depths):
        for name, of_method in entries.items():
            of_method += _entries(depth, trained[name], maps[name], other[name] if depth["last"] else None)
    return in_order(nodes, SCHEMA, entries, "step", rejects)


def _randomised(explaining: Explaining, rows: Sequence[Row], depths: int | None) -> Iterator[tuple[Row, Maps]]:
    """Yield (columns of the depth, relevance of all methods) for each of so many `depths`; None: all."""
    from closelook.lrp_core.interventions.randomised import depths_of, randomised

    view, seed = explaining.opened.view, explaining.opened.options.seed
    names = depths_of(view)
    chosen = chosen_depths(len(names), depths)
    with randomised(view, seed_of(seed, FIRST)) as models:
        for name, changed in models:
            step = names.index(name) + 1
            if step in chosen:
                columns = {"depth": name, "step": step, "last": step == len(names)}
                yield columns, explaining.maps(changed, rows, seed_of(seed, FIRST, step))


def _wholly_random(explaining: Explaining, rows: Sequence[Row]) -> Maps:
    """The relevance of all methods under a second model whose weights are all random."""
    from closelook.lrp_core.interventions.randomised import randomised

    seed = seed_of(explaining.opened.options.seed, SECOND)
    with randomised(explaining.opened.view, seed) as models:
        return explaining.maps(next(models)[1], rows, seed)


def seed_of(*parts: int) -> int:
    """A seed made from these numbers: the run's seed, which of the random models, and a depth for what methods draw."""
    return int.from_bytes(sha256(repr(parts).encode()).digest()[:4])


def chosen_depths(count: int, depths: int | None) -> set[int]:
    """The numbers of the depths, from 1, that are measured: the last, and others evenly before it.

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
    trained: BySample,
    changed: BySample,
    other: BySample | None,
) -> Iterator[Row]:
    """Yield how far a method's relevance under `changed` weights agrees with that of the `trained` model, by sample."""
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
    schema=lambda dtype: SCHEMA,
    units=units,
    compute=partial(computed, control=_agreements),
)
