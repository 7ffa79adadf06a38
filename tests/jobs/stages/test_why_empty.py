"""Parts of the report that show nothing say why, as the plan and the root have it."""

from types import SimpleNamespace

import pytest

from closelook.jobs.config import RunConfig
from closelook.jobs.plan.node import Node
from closelook.jobs.stages.report.missing import part
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
        ({}, [], [], "Set `prune` and `perturb` in the config and run `closelook run`."),
        ({"perturb": {}}, [], [], "Set `prune` in the config and run `closelook run`."),
        (BOTH, NODES, NODES[:1], "1 of 2 results are not computed: run `closelook run`."),
        (BOTH, NODES, NODES, "All that is planned is computed. This needs heads."),
    ],
)
def test_a_part_that_shows_nothing_says_what_is_not_set_not_computed_or_not_there(settings, nodes, done, message):
    report = report_of(settings, [node.artifact for node in done])
    shown = part(report, "Heads", nodes, ["prune", "perturb"], "heads")
    assert shown.why_empty == message
    assert shown.note == (message if "not computed" in message else "")


def test_samples_that_are_not_prepared_are_the_reason_that_nothing_is_planned():
    report = report_of(BOTH, unprepared=[("m", "a")])
    assert part(report, "Heads", [], ["prune"], "heads").why_empty == "Samples are not prepared: run `closelook run`."
