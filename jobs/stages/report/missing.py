"""The numbers of the first screen, and why some are not there: sentences that follow from the plan and the root."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import TypeVar

from closelook.evaluation.report.overview.leaderboard import method_seconds
from closelook.evaluation.report.overview.standings import OtherNumbers
from closelook.evaluation.report.results import CellKey
from closelook.evaluation.report.sections.controls import verdicts
from closelook.evaluation.report.table import DONE
from closelook.evaluation.scoring.faithfulness.flips import CONTRAST, TARGET_LOGIT
from closelook.evaluation.scoring.metrics import lead
from closelook.evaluation.scoring.statistics import Comparison
from closelook.jobs.plan.node import Node
from closelook.jobs.products import curves
from closelook.jobs.products.controls import randomisation
from closelook.jobs.stages.report.reported import Reported

#: The explained numbers that curves follow, in words.
NUMBERS = {TARGET_LOGIT: "the target's logit", CONTRAST: "the target's logit minus the foil's"}
SomeNode = TypeVar("SomeNode", bound=Node)
NOISE = "relevance is, or may be, rounding error"


def other_numbers(report: Reported) -> OtherNumbers:
    """Faithfulness, seconds and controls of methods, for the first screen, and why some are not there.

    Faithfulness is that of the first way of removal, and of the explained number to which the scores beside it
    belong.
    """
    faithfulness: dict[tuple[str, str], Comparison] = {}
    for drawn in report.drawn:
        if drawn.areas.comparison is not None and drawn.score == report.explained_number(drawn.model, drawn.task):
            faithfulness.setdefault((drawn.model, drawn.task), drawn.areas.comparison)
    failed, results = verdicts(report.controls), report.results
    controlled = {cell[:2] for cell in failed}
    boards = product(results.models, results.scored)
    compared = [(model, task) for model, task in boards if results.compared(model, task) is not None]
    others = [task for task in results.scored if task not in {task for _, task in compared}]
    return OtherNumbers(
        faithfulness,
        method_seconds(results, report.runtimes),
        failed,
        unfaithful={board: why_unfaithful(report, *board) for board in compared if board not in faithfulness},
        unverified={board: why_unverified(report, *board) for board in compared if board not in controlled},
        uncompared={task: why_uncompared(report, task) for task in others},
    )


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


def why_unfaithful(report: Reported, model: str, task: str) -> str:
    """The reason why a model and task have no faithfulness of the number that their scores explain."""
    if report.run.config.perturb is None:
        return "the config has no `perturb`"
    nodes = list(_of(curves.nodes(report.run), model, task))
    if not nodes:
        return "the config's `perturb` plans no curves of it"
    if _undone(report, nodes) == len(nodes):
        return "curves are not computed: run `closelook perturb`"
    if not any(node.ways for node in nodes):
        return "only shares of tokens are removed, and curves have no areas (`perturb.measures`)"
    explained = report.explained_number(model, task)
    of_task = [curve_set for curve_set in report.drawn if (curve_set.model, curve_set.task) == (model, task)]
    sets = [curve_set for curve_set in of_task if curve_set.score == explained]
    if not sets:
        others = " and ".join(dict.fromkeys(NUMBERS[curve_set.score] for curve_set in of_task))
        return f"its curves follow {others}, and scores explain {NUMBERS[explained]} (`perturb.explanations`)"
    if sets[0].noise and not sets[0].areas.variants:
        return NOISE
    return _untested(report) or "its methods have no sample in common whose curves are finite"


def why_unverified(report: Reported, model: str, task: str) -> str:
    """The reason why no method has a verdict of a control on a model and task."""
    if report.run.config.controls is None:
        return "the config has no `controls`"
    nodes = list(_of(randomisation.nodes(report.run), model, task))
    if not nodes:
        return "the config's `controls` does not take it"
    if _undone(report, nodes):
        return "controls are not computed: run `closelook controls`"
    return "there are too few samples for a verdict"


def why_uncompared(report: Reported, task: str) -> str:
    """The reason why no methods are compared on a task with evidence."""
    results = report.results
    cells = [cell_key for cell_key in results.states if cell_key.task == task]
    known = [cell_key for cell_key in cells if results.states[cell_key] == DONE]
    if not known:
        return "scores are not computed: run `closelook attribute` and `evaluate`" if cells else "no method explains it"
    if all(results.noise(cell_key) for cell_key in known):
        return NOISE
    if not any(_scored(report, cell_key) for cell_key in known):
        return "no model predicts a sample of it correctly"
    return _untested(report) or "its methods have no sample in common that a model predicts correctly"


def _scored(report: Reported, cell_key: CellKey) -> int:
    """The number of samples in the leading score of a cell."""
    score = report.results.score(cell_key, lead())
    return 0 if score is None else score.n


def _untested(report: Reported) -> str:
    """The reason why nothing is compared in the whole report; empty if there is none."""
    return "" if report.run.config.report.resamples else "`report.resamples` of the config is 0"


def _undone(report: Reported, nodes: Iterable[Node]) -> int:
    """The number of nodes whose artifacts are not computed."""
    return sum(not report.ledger.is_done(node.artifact) for node in nodes)


def _of(nodes: Iterable[SomeNode], model: str, task: str) -> Iterator[SomeNode]:
    """The nodes of a model and task."""
    return (node for node in nodes if (node.artifact.model, node.artifact.task) == (model, task))
