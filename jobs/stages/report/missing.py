"""The numbers of the first screen, and why a part of the report is empty, as the plan and the root have it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from closelook.evaluation.report.overview.leaderboard import method_seconds
from closelook.evaluation.report.overview.standings import OtherNumbers
from closelook.evaluation.report.sections.controls import verdicts
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
    needs = "a method that gives relevance of neurons and promises a sum"
    return why_empty(report, "No relevance of neurons is kept", ["neurons"], "`closelook attribute`", needs, nodes)


def why_empty(
    report: Reported, lacking: str, keys: Sequence[str], stages: str, needs: str, nodes: Iterable[Node]
) -> str:
    """The reason why a part of the report shows nothing, and a remedy.

    `lacking` is the beginning of the sentence, which says what is missing. The part shows the artifacts of `nodes`,
    which the config's `keys` ask for and the commands `stages` compute; `needs` is what else it needs.
    """
    unset = [f"`{key}`" for key in keys if getattr(report.run.config, key) is None]
    if unset:
        return f"{lacking}: set {' and '.join(unset)} in the config and run {stages}."
    planned = list(nodes)
    undone = _undone(report, planned)
    if undone:
        return f"{lacking}: {undone} of {len(planned)} results are not computed. Run {stages}."
    if planned:
        return f"{lacking}, though all that is planned is computed. It needs {needs}."
    if report.run.plan.unprepared:
        return f"{lacking}: samples are not prepared. Run `closelook prepare`."
    return f"{lacking}: no model and task of the run has what it needs, {needs}."


def _undone(report: Reported, nodes: Iterable[Node]) -> int:
    """The number of nodes whose artifacts are not computed."""
    return sum(not report.ledger.is_done(node.artifact) for node in nodes)
