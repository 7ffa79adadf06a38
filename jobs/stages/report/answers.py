"""The answers of a run with the relevance of their sources, for the report's explorer."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from closelook.evaluation.ablations.means import Variant
from closelook.evaluation.report.explorers import MethodSources, answer_entry
from closelook.evaluation.report.leaves import Entry
from closelook.evaluation.report.results import Methods, rank
from closelook.evaluation.report.sections.sources import named
from closelook.evaluation.schema import ANSWER_VIEW, SOURCES
from closelook.jobs.plan.node import Run
from closelook.jobs.products.answers import sources
from closelook.jobs.products.answers.ablations import SourcesNode
from closelook.jobs.stages.report.samples import rows_by_id

Row = Mapping[str, Any]
Claims = dict[tuple[str, str], list[tuple[Variant, Row]]]  # by (sample id, way of removal)


def answer_entries(run: Run, methods: Methods) -> Iterator[Entry]:
    """Yield an entry for each shown answer, model and way of removal; entries of a task come together."""
    done = [node for node in sources.nodes(run) if run.ledger.is_done(node.artifact)]
    cells = dict.fromkeys((node.artifact.task, node.artifact.model) for node in done)
    for task, model in sorted(cells, key=lambda cell: list(run.config.tasks).index(cell[0])):
        nodes = [node for node in done if (node.artifact.task, node.artifact.model) == (task, model)]
        yield from _entries(run, nodes, methods)


def _entries(run: Run, nodes: Sequence[SourcesNode], methods: Methods) -> Iterator[Entry]:
    """The entries of one model's answers to one task, for each shown answer and way of removal."""
    model = nodes[0].plan
    artifact = nodes[0].artifact
    shown = sorted(nodes[0].shown)
    views = rows_by_id(run.store, model.inputs[artifact.task].paths, ANSWER_VIEW, shown)
    for (sample, way), claims in sorted(_claims(run, nodes, shown).items()):
        view = views[sample]
        claims.sort(key=lambda claim: (*rank(methods, claim[0].method), claim[0].explanation))
        shown_methods = []
        for variant, row in claims:
            shown_methods.append(MethodSources(named(methods, variant), row["relevance"], row["parts"] or ()))
        ablating = (number for number, (_, row) in enumerate(claims) if row["ablated"])
        yield answer_entry(
            view["prompt"],
            view["unit_spans"],
            view["answer"],
            view["answer_spans"],
            shown_methods,
            evidence=view["unit_evidence"],
            turns=None if view["turns"] is None else json.loads(view["turns"]),
            pair=(0, next(ablating, 1)),
            sample_id=sample,
            model=artifact.model,
            task=artifact.task,
            way=way,
            untrained=model.resolved.config.id.startswith("random/"),
        )


def _claims(run: Run, nodes: Sequence[SourcesNode], shown: Sequence[str]) -> Claims:
    """The methods' relevance of sources by (sample id, way of removal)."""
    claims: Claims = defaultdict(list)
    for node in nodes:
        table = run.ledger.read(node.artifact, SOURCES)
        table = table.filter(pc.is_in(table["sample_id"], pa.array(shown, pa.string())))
        for row in table.to_pylist():
            if row["drop_l"]:  # others are of smaller budgets or screened
                variant = Variant(node.artifact.method, row["explanation"])
                claims[row["sample_id"], row["way"]].append((variant, row))
    return claims
