"""Parts of the report that show nothing say why, and nothing that is not so."""

from types import SimpleNamespace

import pytest

from jobs.config import RunConfig
from jobs.stages.report.reported import Reported
from tests.synthetic import CONFIG


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "Nothing is there: set `prune` and `perturb` in the config and run `closelook prune`."),
        ({"perturb": {}}, "Nothing is there: set `prune` in the config and run `closelook prune`."),
        (
            {"perturb": {}, "prune": {}},
            "Nothing is there, though `prune` and `perturb` are set: run `closelook prune`. It needs heads.",
        ),
    ],
)
def test_a_part_asks_for_what_is_not_set_and_else_says_what_it_needs(settings, message):
    config = RunConfig.model_validate(CONFIG.model_dump() | {"heads": {}} | settings)
    report = Reported(SimpleNamespace(config=config), None)
    assert report.why_lacking("Nothing is there", ["prune", "perturb"], "`closelook prune`", "heads") == message
