"""The agreement of methods on the relevance of tokens in the same samples."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np
import pyarrow.compute as pc

from evaluation.report.page import Part
from evaluation.report.results import CellKey, Variant
from evaluation.report.sections.agreement import agreement_figures, agreement_table
from evaluation.report.sections.controls import PAGE
from evaluation.schema import RELEVANCE
from evaluation.scoring.agreement import MethodAgreement, agreement_of
from jobs.stages.report.reported import Reported
from jobs.stages.report.results import cell_key_of, relevance_cells
from jobs.store import Artifact, Ledger

SAMPLES = 30  # so many samples of a model and task are compared
Maps = dict[str, dict[str, np.ndarray]]  # relevance [T] by method and sample id
_COLUMNS = ["sample_id", "explanation", "embedding", "relevance"]


def agreement_part(report: Reported) -> Part:
    """The agreement of methods' default variants, for each model and task with at least two methods."""
    results, ledger = report.results, report.run.ledger
    cells: dict[tuple[str, str], dict[str, tuple[Artifact, Variant]]] = defaultdict(dict)
    for cell in (planned.artifact for planned in relevance_cells(report.run.plan)):
        cell_key = cell_key_of(cell)
        if cell_key not in results.defaults or results.is_noise(cell_key):
            continue
        if _is_first(report, cell_key) and ledger.is_done(cell):
            cells[cell_key.model, cell_key.task][cell_key.method] = cell, results.defaults[cell_key]
    agreements: dict[tuple[str, str], MethodAgreement] = {}
    for key, of_methods in cells.items():
        agreement = agreement_of(*_of_the_same(ledger, of_methods))
        if agreement is not None:
            agreements[key] = agreement
    how = "It needs scores of several methods: run `closelook attribute` and `evaluate`."
    details = [agreement_table(agreements, results.methods)] if agreements else []
    return Part("Agreement", how, agreement_figures(agreements, results.methods), page=PAGE, details=details)


def _is_first(report: Reported, cell_key: CellKey) -> bool:
    """True for cells in the first precision of their model and task."""
    return cell_key.dtype == report.results.dtypes[cell_key.model, cell_key.task][0]


def _of_the_same(ledger: Ledger, of_methods: Mapping[str, tuple[Artifact, Variant]]) -> tuple[Maps, list[str]]:
    """(relevance [T] by method and sample id, ids of the first SAMPLES samples that all methods have)."""
    tables = {}
    for method, (cell, variant) in of_methods.items():
        is_variant = (pc.field("explanation") == variant.explanation) & (pc.field("embedding") == variant.embedding)
        tables[method] = ledger.read(cell, RELEVANCE, _COLUMNS).filter(is_variant)
    common = set.intersection(*(set(table["sample_id"].to_pylist()) for table in tables.values()))
    samples = sorted(common)[:SAMPLES]
    chosen = pc.field("sample_id").isin(samples)
    relevance = {}
    for method, table in tables.items():
        rows = table.filter(chosen).to_pylist()
        relevance[method] = {row["sample_id"]: np.array(row["relevance"], np.float64) for row in rows}
    return relevance, samples
