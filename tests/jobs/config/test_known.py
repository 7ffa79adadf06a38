"""Names in a configuration that do not exist are all reported at once, with the config keys that name them."""

import json
import re

import pytest

from closelook.jobs.config import RunConfig
from closelook.jobs.config.file import ConfigError
from tests.jobs.small import REPOSITORY, closelook, config_of, ended
from tests.packages import install

TAKEN = """
from closelook.evaluation.scoring.metrics import Metric
from closelook.evaluation.tasks import Task
from closelook.lrp_core import Method

LRP = Method("lrp", version=1, label="Another", explain="nowhere:nothing")
SVA = Task(name="sva", title="another")
PG = Metric("pg", "Another", len)
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
        "'methods': alti_logit: option 'initial' must be true or false, not 3",
        "'models.strange.methods': unknown method 'rollout'",
    ]


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("group", "value", "kind", "name"),
    [("methods", "LRP", "method", "lrp"), ("tasks", "SVA", "task", "sva"), ("metrics", "PG", "metric", "pg")],
)
def test_a_record_that_takes_a_name_is_one_line_that_names_both_sides(tmp_path, group, value, kind, name):
    install(tmp_path, "their_own", TAKEN, **{group: f"their_own:{value}"})
    path = f"{tmp_path}:{REPOSITORY}"
    code, out, err = ended(closelook("status", PYTHONPATH=path, PYTHONPROFILEIMPORTTIME="1"))
    assert (code, out) == (2, "")
    assert re.match(
        rf"error: their-own and \S+ both bring a {kind} named '{name}': rename one of them or uninstall its package$",
        error_line(err),
    )


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("methods=[lpr]", "unknown method 'lpr' (did you mean 'lrp'?)"),
        ("methods=[{alti_logit: {initial: 3}}]", "option 'initial' must be true or false, not 3"),
        ("tasks.sva.source=squat", "unknown source 'squat' (did you mean 'squad'?)"),
        ("tasks.foo.source=demo", "the source 'demo' feeds the tasks ra, "),
    ],
)
def test_what_does_not_exist_is_one_line_before_torch_is_imported(setting, message):
    code, out, err = ended(closelook("status", "--set", setting, PYTHONPROFILEIMPORTTIME="1"))
    assert (code, out) == (2, "")
    assert message in error_line(err)


def test_a_mistyped_method_of_one_sentence_is_told_as_soon():
    arguments = ("explain", "--model", "demo/gpt2", "--method", "lrp, lpr", "The keys")
    code, out, err = ended(closelook(*arguments, PYTHONPROFILEIMPORTTIME="1"))
    assert (code, out) == (2, "")
    assert "unknown method 'lpr' (did you mean 'lrp'?)" in error_line(err)


def error_line(err):
    """The line of an error that is told before torch is imported, from what a process that says its imports writes."""
    imported = set(re.findall(r"^import time: .*\| +(\S+)$", err, re.MULTILINE))
    assert "closelook.methods" in imported
    assert not imported & {"torch", "transformers", "ray"}
    (line,) = [line for line in err.splitlines() if not line.startswith("import time: ")]
    return line


@pytest.mark.parametrize(
    ("path", "hosts", "message"),
    [
        ("https://example.org/mine.jsonl", [], "it is on the web server example.org: add `hosts: [example.org]`"),
        ("http://example.org:80/mine.jsonl", ["www.example.org"], "the web server example.org"),
        ("https://example.org/mine.jsonl", ["example.org"], None),
        ("https://example.org:8443/mine.jsonl", ["example.org"], None),
        ("https://example.org@elsewhere.net/mine.jsonl", ["example.org"], "contains credentials"),
        ("s3://key:secret@bucket/mine.jsonl", [], "contains credentials"),
        ("ftp://example.org/mine.jsonl", ["example.org"], "ftp:// is not supported"),
        ("s3://bucket/mine.jsonl", [], None),
        ("gs://bucket/mine.jsonl", [], None),
        ("hf://datasets/me/mine@main/mine.jsonl", [], None),
        ("file:///data/mine.jsonl", [], None),
    ],
)
def test_a_url_is_read_only_where_the_configuration_may_ask_for_it(path, hosts, message, tmp_path, model, monkeypatch):
    read = []
    monkeypatch.setattr("closelook.jobs.config.known.has_foils", lambda path, columns: read.append(path) or True)
    for key, settings in {
        "tasks.mine.path": {"tasks": {"mine": {"source": "samples", "path": path}}},
        "neurons.corpus.path": {"neurons": {"tasks": {}, "corpus": {"source": "text", "path": path}}},
    }.items():
        config = config_of(tmp_path / "root", model, hosts=hosts, explanations=["contrastive"], **settings)
        config = config.model_dump(mode="json")
        if message is None:
            assert RunConfig.load(config).hosts == tuple(hosts)
            continue
        with pytest.raises(ConfigError) as caught:
            RunConfig.load(config)
        assert re.match(rf"config key '{key}': .*{re.escape(message)}", str(caught.value))
        assert "secret" not in str(caught.value)
        assert not read, "nothing is loaded from there"


def test_two_pairs_of_model_and_task_never_share_the_names_of_files(tmp_path, model):
    models = [{"name": name, "id": str(model)} for name in ("tiny", "tiny.a")]
    config = config_of(tmp_path / "root", models=models, tasks={name: {"source": "demo"} for name in ("sva", "a.sva")})
    with pytest.raises(ConfigError, match=r"task sva of model tiny\.a and task a\.sva of model tiny would share files"):
        RunConfig.load(config.model_dump(mode="json"))
