"""Rewritten models: how much relevance changes if a model computes the same function with other weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from closelook.evaluation.schema import REWRITTEN as SCHEMA
from closelook.evaluation.schema import titled
from closelook.jobs.plan.node import Run
from closelook.jobs.products.controls.controlled import (
    BySample,
    ControlNode,
    Explaining,
    batches,
    computed,
    control_nodes,
    expected,
    in_order,
    units,
)
from closelook.jobs.products.record import Made, Product, Row
from closelook.lrp_core.families.generic import GenericFamily

VERSION = 1  # raised when numbers change: stored ones of older versions are stale


def nodes(run: Run) -> Iterator[ControlNode]:
    """A node for each controlled method, except on models that no family describes."""
    for node in control_nodes(run, "rewritten", {"version": VERSION, "schema": titled(SCHEMA)}):
        if not isinstance(node.plan.resolved.family, GenericFamily):
            yield node


def _changes(explaining: Explaining, nodes: Sequence[ControlNode], rows: Sequence[Row]) -> dict[str, Made]:
    """By method, how much relevance changes with each rewriting, sample by sample.

    Raises UnsupportedModel if a rewritten model computes another function: its numbers would be wrong.
    """
    from closelook.lrp_core.interventions.rewritten import rewritten

    view, seed = explaining.opened.view, explaining.opened.options.seed
    trained, rejects = explaining.trained(rows)
    entries: dict[str, list[Row]] = {name: [] for name in rejects}
    logits = _logits(explaining, view, rows)
    with rewritten(view, seed) as models:
        for rewriting, changed in models:
            moved = _moved(explaining, logits, _logits(explaining, changed, rows), rewriting)
            maps = explaining.maps(changed, rows, seed)
            for name, of_method in entries.items():
                for sample, map_ in trained[name].items():
                    change = _change(map_, maps[name][sample])
                    of_method.append({"sample_id": sample, "rewriting": rewriting, "change": change, **moved[sample]})
    return in_order(nodes, SCHEMA, entries, "rewriting", rejects)


def _logits(explaining: Explaining, view: Any, rows: Sequence[Row]) -> BySample:
    """The logit of the target, and of the foil if the sample has one, by sample id."""
    import torch

    from closelook.lrp_core import Batch

    logits: BySample = {}
    for batch in batches(rows, explaining.token_budget):
        collated = Batch.collate(batch, pad_id=view.pad_id).to(view.device)
        with torch.no_grad():
            of_batch = view.logits(view.hidden(collated), collated).double().cpu().numpy()
        logits |= {row["sample_id"]: numbers for row, numbers in zip(batch, of_batch, strict=True)}
    return logits


def _moved(explaining: Explaining, before: BySample, after: BySample, rewriting: str) -> dict[str, dict[str, float]]:
    """The largest change of a logit, by sample id.

    Raises UnsupportedModel if rounding does not explain it.
    """
    from closelook.lrp_core.records.types import UnsupportedModel
    from closelook.lrp_core.views.guard import ROUNDING

    view = explaining.opened.view
    rounding = ROUNDING[str(view.dtype).removeprefix("torch.")]
    moved = {}
    for sample, logits in before.items():
        changes = np.abs(after[sample] - logits)
        if not (changes <= rounding * np.maximum(1, np.abs(logits))).all():
            failure = f"{type(view.model).__name__} computes another function with its {rewriting}"
            raise UnsupportedModel(f"{failure}: logits of sample {sample} change by {changes.max():g}")
        moved[sample] = {"logit_change": float(changes.max())}
    return moved


def _change(trained: np.ndarray, rewritten: np.ndarray) -> float | None:
    """The largest change of a token's relevance, as a share of the largest relevance; None if all relevance is 0."""
    largest = np.abs(trained).max(initial=0)
    change = np.abs(rewritten - trained).max(initial=0) / largest if largest else np.nan
    return float(change) if np.isfinite(change) else None


REWRITTEN = Product(
    name="rewritten",
    title="rewritten models",
    stage="controls",
    nodes=nodes,
    expected=expected,
    schema=lambda dtype: SCHEMA,
    units=units,
    compute=partial(computed, control=_changes),
)
