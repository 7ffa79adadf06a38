"""Agreement of methods over the tokens of the same samples."""

from __future__ import annotations

import numpy as np

from evaluation.report.agreement import agreement_figures, agreement_table
from evaluation.report.controls import PAGE
from evaluation.report.page import Part
from evaluation.report.results import Place, Variant
from evaluation.schema import RELEVANCE
from evaluation.scoring.agreement import MethodAgreement, agreement_of
from jobs.stages.report.reported import Reported
from jobs.stages.report.results import place_of, relevance_cells
from jobs.store import Artifact, Ledger

SAMPLES = 30  # of a model and task: those that come first in the first shards of all methods
_COLUMNS = ["sample_id", "explanation", "embedding", "relevance"]


def agreement_part(report: Reported) -> Part:
    """The agreement of every method's default variant, of each model and task with two methods or more."""
    results, ledger = report.results, report.run.ledger
    places: dict[tuple[str, str], dict[str, dict[str, np.ndarray]]] = {}
    for cell in (planned.artifact for planned in relevance_cells(report.run.plan)):
        place = place_of(cell)
        if place in results.defaults and _is_first(report, place) and not results.is_noise(place):
            maps = _maps(ledger, cell, results.defaults[place])
            places.setdefault((place.model, place.task), {})[place.method] = maps
    agreements: dict[tuple[str, str], MethodAgreement] = {}
    for key, relevance in places.items():
        common = set.intersection(*map(set, relevance.values()))
        agreement = agreement_of(relevance, sorted(common)[:SAMPLES])
        if agreement is not None:
            agreements[key] = agreement
    how = "It needs scores of several methods: run `closelook attribute` and `evaluate`."
    details = [agreement_table(agreements, results.methods)] if agreements else []
    return Part("Agreement", how, agreement_figures(agreements, results.methods), page=PAGE, details=details)


def _is_first(report: Reported, place: Place) -> bool:
    return place.dtype == report.results.dtypes[place.model, place.task][0]


def _maps(ledger: Ledger, cell: Artifact, variant: Variant) -> dict[str, np.ndarray]:
    """Relevance [T] by sample, of the samples in a cell's first shard."""
    first = sorted(ledger.files(cell))[:1]
    rows = ledger.store.read(first, RELEVANCE, _COLUMNS).to_pylist() if first else []
    asked = (variant.explanation, variant.embedding)
    return {
        row["sample_id"]: np.array(row["relevance"], np.float64)
        for row in rows
        if (row["explanation"], row["embedding"]) == asked
    }
