"""Exact Shapley values of short texts, by enumeration, and how close the relevance of methods comes to them.

The players are tokens. The worth of a set of tokens is the explained number if all other tokens have zero embeddings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow.compute as pc

from closelook.evaluation.schema import SHAPLEY as SCHEMA
from closelook.evaluation.schema import titled
from closelook.evaluation.scoring.controls import error_after_scaling
from closelook.evaluation.scoring.faithfulness.areas import rank_correlation
from closelook.jobs.config import RunConfig
from closelook.jobs.methods import METHODS
from closelook.jobs.plan.inputs import Inputs
from closelook.jobs.plan.node import Run
from closelook.jobs.products.controls.controlled import (
    ControlNode,
    Explaining,
    computed,
    control_nodes,
    in_order,
    units,
)
from closelook.jobs.products.record import Made, Product, Row
from closelook.lrp_core.records.explained import NONE, needs_foil
from closelook.lrp_core.records.types import Request

VERSION = 1  # raised when numbers change: stored ones of older versions are stale
MOST = 10  # tokens of a sample, which have 1,024 sets
_EXACT = "exact"  # the name under which kernel_shap enumerates all sets


def nodes(run: Run) -> Iterator[ControlNode]:
    """A node for each controlled method, on models and tasks that have texts of at most MOST tokens."""
    return control_nodes(run, "shapley", {"version": VERSION, "schema": titled(SCHEMA), "most": MOST}, short)


def short(config: RunConfig, inputs: Inputs) -> np.ndarray:
    """The samples, the same for every method, with at most MOST tokens: indices into the views.

    The tokens that a decoder reads count too.
    """
    assert config.controls is not None
    written = pc.fill_null(pc.list_value_length(inputs.table["decoder_input_ids"]), 0)
    tokens = inputs.lengths + written.to_numpy()
    return inputs.subset(config.controls.samples, config.seed, np.flatnonzero(tokens <= MOST))


def _nearness(explaining: Explaining, nodes: Sequence[ControlNode], rows: Sequence[Row]) -> dict[str, Made]:
    """By method, how close relevance comes to exact Shapley values, sample by sample."""
    trained, rejects = explaining.trained(rows)
    contrasts = all(row["foil_id"] is not None for row in rows)
    games = {request: _game(request, contrasts) for request in explaining.requests}
    values = {game: _exact(explaining, rows, game) for game in set(games.values())}
    entries: dict[str, list[Row]] = {}
    for request, game in games.items():
        maps, exact = trained[request.method], values[game]
        entries[request.method] = [_entry(name, maps[name], exact[name], game) for name in maps if name in exact]
    return in_order(nodes, SCHEMA, entries, "game", rejects)


def _game(request: Request, contrasts: bool) -> str:
    """The explanation whose number is shared out among the tokens."""
    if request.explanation != NONE:
        return request.explanation
    return "contrastive" if contrasts else "target"


def _exact(explaining: Explaining, rows: Sequence[Row], game: str) -> dict[str, np.ndarray]:
    """Exact Shapley values [T] by sample id: kernel_shap with as many samples as there are sets of tokens."""
    record = METHODS["kernel_shap"].configured(_EXACT, samples=2**MOST)
    request = Request(_EXACT, game, record.embeddings[0])
    rows = [row for row in rows if row["foil_id"] is not None or not needs_foil(game)]
    enumerating = replace(explaining, requests=(request,), methods={_EXACT: record})
    return enumerating.maps(explaining.opened.view, rows, explaining.opened.options.seed)[_EXACT]


def _entry(sample: str, map_: np.ndarray, exact: np.ndarray, game: str) -> dict[str, Any]:
    """The columns that compare relevance with exact values [T]: rank correlation, and error after scaling."""
    correlation = rank_correlation(map_.tolist(), exact.tolist())
    numbers = {"correlation": correlation, "error": error_after_scaling(map_, exact)}
    finite = {name: value if np.isfinite(value) else None for name, value in numbers.items()}
    return {"sample_id": sample, "game": game, "tokens": len(map_), **finite}


SHAPLEY = Product(
    name="shapley",
    title="comparisons with Shapley values",
    stage="controls",
    nodes=nodes,
    schema=lambda dtype: SCHEMA,
    units=units,
    compute=partial(computed, control=_nearness),
)
