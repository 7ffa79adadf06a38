"""The results of controls as one long list of rows, from which tables and figures are made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import pyarrow as pa

from closelook.evaluation import schema
from closelook.evaluation.scoring.controls import (
    ARCHITECTURE,
    BY_DEPTH,
    BY_DEPTH_ABSOLUTE,
    CHANCE,
    RANDOMISED,
    RESAMPLING,
    SHAPLEY,
    SHAPLEY_ERROR,
    ControlRow,
    Verdict,
    chance_verdict,
    mean_verdict,
    randomisation_verdict,
)
from closelook.evaluation.scoring.intervals import Clusters, Resampling, cluster_numbers
from closelook.jobs.plan.clusters import clusters_of
from closelook.jobs.plan.node import Node, Run
from closelook.jobs.products.controls import randomisation, shapley
from closelook.jobs.products.controls.controlled import BASELINE, ControlNode, tried_on
from closelook.lrp_core.methods.records import PLANTED


def control_rows(run: Run) -> Iterator[ControlRow]:
    """The rows of every control of the run that is done. `pandas.DataFrame(control_rows(run))` is a frame of them."""
    drawing = {record.name for record in tried_on() if record.family == BASELINE}
    resampling, clusters = replace(RESAMPLING, seed=run.config.seed), partial(clusters_of, run.ledger)
    for node, rows in _done(run, randomisation.nodes(run), schema.RANDOMISATION):
        yield from _randomisation_rows(node, rows, node.base in drawing, resampling, clusters(node.artifact.task))
    for node, rows in _done(run, shapley.nodes(run), schema.SHAPLEY):
        drawn = _drawn(resampling, clusters(node.artifact.task), rows)
        yield _row(node, SHAPLEY, mean_verdict([row["correlation"] for row in rows], drawn))
        yield _row(node, SHAPLEY_ERROR, mean_verdict([row["error"] for row in rows], drawn, (0.0, 1.0)))


def _done(
    run: Run, nodes: Iterable[ControlNode], schema: pa.Schema
) -> Iterator[tuple[ControlNode, list[dict[str, Any]]]]:
    """Yield the controls that are done, with their rows."""
    for node in nodes:
        if run.ledger.is_done(node.artifact):
            yield node, run.ledger.read(node.artifact, schema).to_pylist()


def broken(rows: Iterable[ControlRow]) -> list[str]:
    """Lines about controls that do not work as they must.

    These are planted methods that pass, and random relevance that is not at chance.
    """
    lines = []
    for row in rows:
        where = f"{row.model}/{row.task}: {row.control}"
        if row.method in PLANTED and row.passed:
            lines.append(f"{where} passes {row.method}, which must fail")
        if row.control == CHANCE and row.passed is False:
            lines.append(f"{where}: {row.method} is at {row.value:.3f}, outside of [{row.low:.3f}, {row.high:.3f}]")
    return lines


def _drawn(resampling: Resampling, clusters: Clusters, rows: Iterable[Mapping[str, Any]]) -> Resampling:
    """The draws for the samples of `rows`."""
    return resampling.within(cluster_numbers(clusters, [row["sample_id"] for row in rows]))


def _randomisation_rows(
    node: Node, rows: list[dict[str, Any]], draws: bool, resampling: Resampling, clusters: Clusters
) -> Iterator[ControlRow]:
    """Yield the verdict on a method's randomisation and its correlations by depth.

    `draws` is True for a method that draws relevance at random, which must be at chance instead.
    """
    last = [row for row in rows if row["last"]]
    signed, drawn = [row["signed"] for row in last], _drawn(resampling, clusters, last)
    if draws:
        yield _row(node, CHANCE, chance_verdict(signed, [row["tokens"] for row in last]))
    else:
        yield _row(node, RANDOMISED, randomisation_verdict(signed, [row["flat"] for row in last], drawn))
    yield _row(node, ARCHITECTURE, mean_verdict([row["architecture"] for row in last], drawn))
    depths = sorted({(row["step"], row["depth"]) for row in rows})
    for control, column in ((BY_DEPTH, "signed"), (BY_DEPTH_ABSOLUTE, "absolute")):
        for step, depth in depths:
            of_step = [row for row in rows if row["step"] == step]
            values, drawn = [row[column] for row in of_step], _drawn(resampling, clusters, of_step)
            yield _row(node, control, mean_verdict(values, drawn), depth)


def _row(node: Node, control: str, verdict: Verdict, detail: str = "") -> ControlRow:
    """The row of a control for the node's method."""
    artifact = node.artifact
    return ControlRow(artifact.model, artifact.task, artifact.method, control, detail=detail, **asdict(verdict))
