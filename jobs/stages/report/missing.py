"""The numbers of the first screen, and why a part of the report is empty, as the plan and the root have it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from closelook.evaluation.report.overview.leaderboard import method_seconds
from closelook.evaluation.report.overview.standings import OtherNumbers
from closelook.evaluation.report.page import Figure, Part
from closelook.evaluation.report.sections.controls import verdicts
from closelook.evaluation.report.table import Table
from closelook.evaluation.scoring.faithfulness.flips import CONTRAST, TARGET_LOGIT
from closelook.evaluation.scoring.statistics import Comparison
from closelook.jobs.plan.node import Node
from closelook.jobs.stages.report.reported import Reported
from closelook.lrp_core.records.explained import CONTRASTIVE


def other_numbers(report: Reported) -> OtherNumbers:
    """Faithfulness, seconds and controls of methods, for the first screen.

    Faithfulness is that of the first way of removal, and of the explained number to which the scores beside it
    belong.
    """
    defaults = report.results.defaults.items()
    contrastive = {cell_key[:2] for cell_key, variant in defaults if variant.explanation == CONTRASTIVE.name}
    faithfulness: dict[tuple[str, str], Comparison] = {}
    for drawn in report.drawn:
        cell = (drawn.model, drawn.task)
        explained = CONTRAST if cell in contrastive else TARGET_LOGIT
        if drawn.areas.comparison is not None and drawn.score == explained:
            faithfulness.setdefault(cell, drawn.areas.comparison)
    return OtherNumbers(faithfulness, method_seconds(report.results, report.runtimes), verdicts(report.controls))


def no_neurons(report: Reported) -> str:
    """Why the root holds no relevance of neurons that a page can show."""
    nodes = [cell for cell in report.run.plan.cells() if cell.artifact.product == "neurons"]
    return part(report, "", nodes, ["neurons"], "a method that gives relevance of neurons and promises a sum").why_empty


def part(
    report: Reported,
    title: str,
    nodes: Iterable[Node],
    keys: Sequence[str],
    needs: str,
    page: str = "faithfulness.html",
    *,
    figures: Sequence[Figure] = (),
    tables: Sequence[Table] = (),
    details: Sequence[Table] = (),
    notes: Sequence[str] = (),
) -> Part:
    """A part of a page, with a note on its `nodes` that are not computed; if it shows nothing, with the reason.

    The config's `keys` ask for the nodes; `needs` is what else the part needs.
    """
    planned = list(nodes)
    undone = sum(not report.ledger.is_done(node.artifact) for node in planned)
    unset = [f"`{key}`" for key in keys if getattr(report.run.config, key) is None]
    uncomputed = f"{undone} of {len(planned)} results are not computed: run `closelook run`."
    if unset:
        reason = f"Set {' and '.join(unset)} in the config and run `closelook run`."
    elif undone:
        reason = uncomputed
    elif report.run.plan.unprepared and not planned:
        reason = "Samples are not prepared: run `closelook run`."
    else:
        reason = f"All that is planned is computed. This needs {needs}."
    every = [*notes, uncomputed] if undone else notes
    return Part(title, reason, figures, tables, " ".join(every), page, details)
