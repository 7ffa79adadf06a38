"""Parts of the report that show nothing say why, as the plan and the root have it."""

from types import SimpleNamespace

import pytest

from closelook.jobs.config import RunConfig
from closelook.jobs.plan.node import Node
from closelook.jobs.stages.report.missing import why_empty
from closelook.jobs.store import Artifact
from tests.synthetic import CONFIG


def report_of(settings, done=(), unprepared=()):
    config = RunConfig.model_validate(CONFIG.model_dump() | {"heads": {}} | settings)
    run = SimpleNamespace(config=config, plan=SimpleNamespace(unprepared=unprepared))
    return SimpleNamespace(run=run, ledger=SimpleNamespace(is_done=lambda artifact: artifact in done))


NODES = [Node(artifact=Artifact("curves", "m", task, "float32", "lrp")) for task in ("a", "b")]
BOTH = {"perturb": {}, "prune": {}}


@pytest.mark.parametrize(
    ("settings", "nodes", "done", "message"),
    [
        ({}, [], [], "Nothing is there: set `prune` and `perturb` in the config and run `closelook prune`."),
        ({"perturb": {}}, [], [], "Nothing is there: set `prune` in the config and run `closelook prune`."),
        (BOTH, NODES, NODES[:1], "Nothing is there: 1 of 2 results are not computed. Run `closelook prune`."),
        (BOTH, NODES, NODES, "Nothing is there, though all that is planned is computed. It needs heads."),
        (BOTH, [], [], "Nothing is there: no model and task of the run has what it needs, heads."),
    ],
)
def test_a_part_that_shows_nothing_says_what_is_not_set_not_computed_or_not_there(settings, nodes, done, message):
    report = report_of(settings, [node.artifact for node in done])
    assert why_empty(report, "Nothing is there", ["prune", "perturb"], "`closelook prune`", "heads", nodes) == message


def test_samples_that_are_not_prepared_are_the_reason_that_nothing_is_planned():
    report = report_of(BOTH, unprepared=[("m", "a")])
    message = "Nothing is there: samples are not prepared. Run `closelook prepare`."
    assert why_empty(report, "Nothing is there", ["prune"], "`closelook prune`", "heads", []) == message
