"""The sources of whole answers, by every method, on a page of their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from closelook.evaluation.ablations.means import Judgement, Setting, judgement_of
from closelook.evaluation.report.overview.leaderboard import seconds_of
from closelook.evaluation.report.page import Part
from closelook.evaluation.report.sections.sources import PAGE, Judged, error_figures, sources_tables
from closelook.evaluation.schema import RUNTIME
from closelook.evaluation.schema import SOURCES as SCHEMA
from closelook.jobs.config import configured
from closelook.jobs.plan.clusters import clusters_of
from closelook.jobs.plan.node import Run
from closelook.jobs.products.answers import sources
from closelook.jobs.products.answers.ablations import SourcesNode, timings_of
from closelook.jobs.stages.report.reported import Reported

UNTRAINED = (
    "Untrained: some models have random weights, and did not write these answers. Their numbers show form and cost, "
    "but nothing about methods."
)


def sources_part(report: Reported) -> Part:
    """The scores of each method on the sources of answers."""
    run, methods = report.run, report.methods
    nodes = list(sources.nodes(run))
    judged = [_judged(report, nodes, judgement) for judgement in _judgements(run, nodes)]
    notes = [UNTRAINED] if any(judged_setting.untrained for judged_setting in judged) else []
    figures = error_figures(judged, methods, report.results.baseline)
    main, further = sources_tables(judged, methods)
    return report.part(
        "Sources of answers", PAGE, nodes, figures=figures, tables=[main], details=[further], notes=notes
    )


def _judgements(run: Run, nodes: Sequence[SourcesNode]) -> Iterator[Judgement]:
    """Yield the judgement of all methods, for each model, task and way of removal."""
    rows: dict[Setting, dict[str, list[Mapping[str, Any]]]] = {}
    for node in nodes:
        at = node.artifact
        if run.ledger.is_done(at):
            for row in run.ledger.read(at, SCHEMA).to_pylist():
                rows.setdefault((at.model, at.task, row["way"]), {}).setdefault(at.method, []).append(row)
    for setting, by_method in rows.items():
        clusters = clusters_of(run.ledger, setting[1])
        yield judgement_of(setting, by_method, run.config.resampling, clusters)


def _judged(report: Reported, nodes: Sequence[SourcesNode], judgement: Judgement) -> Judged:
    """A judgement with costs: passes by their methods' records, and one forward pass for each ablated prompt."""
    run = report.run
    setting_nodes = [
        node for node in nodes if (node.artifact.model, node.artifact.task) == (judgement.model, judgement.task)
    ]
    lengths = setting_nodes[0].plan.inputs[judgement.task].lengths
    passes, of_pass, methods = {}, _pass_seconds(report, setting_nodes), configured(run.config)
    for node in setting_nodes:
        method = node.artifact.method
        record = methods[method].configured(**node.chosen)
        passes[method] = record.cost(float(lengths.mean())) + bool(record.rules) if node.requests else 0.0
    of_prompt = _prompt_seconds(report, setting_nodes, judgement.way)
    counts = {variant: passes[variant.method] + prompts for variant, prompts in judgement.prompts.items()}
    seconds = {}
    for variant, prompts in judgement.prompts.items():
        known = of_pass.get(variant.method, None if passes[variant.method] else 0.0)
        if known is not None and (of_prompt is not None or not prompts):
            seconds[variant] = known + prompts * (of_prompt or 0.0)
    untrained = setting_nodes[0].plan.resolved.config.id.startswith("random/")
    return Judged(judgement, counts, seconds, untrained)


def _pass_seconds(report: Reported, nodes: Sequence[SourcesNode]) -> dict[str, float]:
    """Median seconds of a sample's relevance by method: its pass, or its share of a pass of several methods."""
    store, at = report.run.store, nodes[0].artifact
    files = store.files(store.runtime(at.model, at.task, at.dtype))
    rows = store.read(files, RUNTIME).to_pylist() if files else []
    setting = {"model": at.model, "task": at.task, "dtype": at.dtype}
    seconds_by_method = seconds_of([row | setting for row in rows], {(at.model, at.task): at.dtype}, report.methods)
    return {method: seconds for (_, _, method), seconds in seconds_by_method.items()}


def _prompt_seconds(report: Reported, nodes: Sequence[SourcesNode], way: str) -> float | None:
    """Median seconds of an ablated prompt; None if none was timed."""
    [ablated] = {made for node in nodes for made in node.made_of if (made.product, made.method) == ("ablations", way)}
    store = report.run.store
    files = store.files(timings_of(store, ablated))
    rows = store.read(files, RUNTIME, ["wall_s", "batch"]).to_pylist() if files else []
    return float(np.median([row["wall_s"] / row["batch"] for row in rows])) if rows else None
