"""What a configuration asks for and does not exist is told at once, all of it, with the keys that ask for it."""

import json
import re

import pytest

from jobs.config import RunConfig
from jobs.config.file import ConfigError
from tests.jobs.small import REPOSITORY, closelook, config_of, ended
from tests.packages import install

TAKEN = """
from lrp_core import Method

LRP = Method("lrp", version=1, label="Another", explain="nowhere:nothing")
"""


def test_every_key_that_asks_for_what_does_not_exist_is_named(tmp_path, model):
    config = config_of(
        tmp_path / "root",
        models=[
            {"name": "strange", "id": str(tmp_path), "methods": ["random", "rollout"]},
            {"name": "gpt2", "id": str(model)},
        ],
        methods=["lpr", {"alti_logit": {"initial": 3}}, "random"],
        tasks={"sva": {"source": "squat"}, "ra": {"source": "demo"}},
    )
    (tmp_path / "config.json").write_text('{"model_type": "gpt3"}')
    (tmp_path / "run.yaml").write_text(json.dumps(config.model_dump(mode="json")))
    with pytest.raises(ConfigError) as caught:
        RunConfig.load(tmp_path / "run.yaml")
    problems = [problem.split(" (did")[0].split("; ")[0] for problem in str(caught.value).split("config key ")[1:]]
    assert [problem.removesuffix("; ") for problem in problems] == [
        "'tasks.sva.source': unknown source 'squat'",
        "'models.strange.id': no family describes 'gpt3' models",
        "'methods': unknown method 'lpr'",
        "'methods': alti_logit: option 'initial' is true or false, not 3",
        "'models.strange.methods': unknown method 'rollout'",
    ]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("methods=[lpr]", "unknown method 'lpr' (did you mean 'lrp'?)"),
        ("methods=[{alti_logit: {initial: 3}}]", "option 'initial' is true or false, not 3"),
        ("tasks.sva.source=squat", "unknown source 'squat' (did you mean 'squad'?)"),
        ("tasks.foo.source=demo", "the source 'demo' feeds the tasks ra, sva, qa, not 'foo'"),
        ("seed=0", "their-lrp and closelook both bring a method named 'lrp'"),
    ],
)
def test_what_does_not_exist_is_told_before_torch_is_imported(tmp_path, setting, message):
    if setting == "seed=0":
        install(tmp_path, "their_lrp", TAKEN, methods="their_lrp:LRP")
    path = f"{tmp_path}:{REPOSITORY}"
    code, _, err = ended(closelook("status", "--set", setting, PYTHONPATH=path, PYTHONPROFILEIMPORTTIME="1"))
    imported = set(re.findall(r"\| +(\S+)$", err, re.MULTILINE))
    assert code == 2
    assert message in err.splitlines()[-1]
    assert "jobs.config.run" in imported
    assert not imported & {"torch", "transformers", "ray"}
