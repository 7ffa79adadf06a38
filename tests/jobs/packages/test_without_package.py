"""A root that was made with what a package brought, read once the package is gone: all that is known is there."""

import json
import re
import shutil
from types import SimpleNamespace

import pytest

from tests.jobs.forked import Forked
from tests.jobs.packages.test_example_package import installed
from tests.jobs.small import ended, save_model

pytestmark = pytest.mark.nightly  # a run with a package and processes without it
LACKING = (
    "left out, since no installed package defines it: method 'open_loop', method 'embedding_power', "
    "task 'pairs' of source 'pairs', family 'gpt2-renamed' of model 'renamed', metric 'chosen', "
    "product 'entropy'"
)
METHODS = ["attnlrp", "open_loop", "random", {"name": "squared", "method": "embedding_power", "power": 2}]
MINE = {"text": "w5 w7 ___", "target": "w9", "foil": "w8", "evidence": "w7"}


@pytest.fixture(scope="module")
def left(tmp_path_factory):
    """The folder of a root that a run made with the package, of a tiny model and one of the package's family."""
    folder = tmp_path_factory.mktemp("left")
    site = installed(folder)
    known, renamed = (save_model(folder / name) for name in ("known", "renamed"))
    described = json.loads((renamed / "config.json").read_text())
    (renamed / "config.json").write_text(json.dumps(described | {"model_type": "gpt2-renamed", "architectures": None}))
    (folder / "pairs.txt").write_text("w5 w7 w9 w10 w11\nw6 w7 w8 w11 w10\n")
    (folder / "mine.jsonl").write_text(f"{json.dumps(MINE)}\n{json.dumps({**MINE, 'text': 'w6 w7 w4 ___'})}\n")
    settings = {
        "name": "left",
        "root": str(folder / "root"),
        "tasks": {
            "pairs": {"source": "pairs", "path": str(folder / "pairs.txt")},
            "mine": {"source": "samples", "path": str(folder / "mine.jsonl")},
        },
        "models": [{"name": "known", "id": str(known)}, {"name": "renamed", "id": str(renamed)}],
        "methods": METHODS,
        "heads": {"pairs": None, "mine": None},
        "perturb": {"methods": ["squared", "attnlrp"], "explanations": ["target"], "embeddings": ["full"], "steps": 2},
        "report": {"samples": 1, "resamples": 20},
    }
    config = folder / "left.yaml"
    config.write_text(json.dumps(settings))
    code, out, err = ended(Forked("run", "--config", str(config), PYTHONPATH=str(site)))
    assert code == 0, out + err
    shutil.rmtree(site)
    return SimpleNamespace(root=folder / "root", kept=(folder / "root" / "config.yaml").read_text())


@pytest.fixture
def command(left):
    """(exit code, what is printed, errors) of a command in a process without the package; the kept config stays."""

    def run(*arguments):
        outcome = ended(Forked(*arguments))
        assert (left.root / "config.yaml").read_text() == left.kept
        return outcome

    return run


def test_status_counts_what_is_known_and_names_what_no_package_brings(left, command):
    code, out, err = command("status", "--root", str(left.root))
    assert (code, err) == (1, "")
    assert [line for line in out.splitlines() if "left out, since" in line] == [LACKING]
    assert re.search(r"known +mine +float32 +relevance +2 +0 +0 +0 +2 +0", out)
    assert re.search(r"known +mine +float32 +scores +2 +0 +0", out), "without its metric, scores of the others count"
    assert re.search(r"known +mine +float32 +curves +1 +0 +0", out)
    assert "renamed: is of a family that no installed package brings" in out
    assert out.splitlines()[-1] == (
        "not all is done (exit code 1): once packages define what is left out, `closelook run` with the same options "
        "computes what is missing"
    )


def test_report_is_written_of_what_is_known_and_names_what_no_package_brings(left, command):
    code, out, err = command("report", "--root", str(left.root))
    assert (code, err) == (0, "")
    assert "method 'open_loop'" in out
    page = (left.root / "report" / "index.html").read_text()
    assert LACKING.replace("'", "&#39;") in page
    table = (left.root / "report" / "tables" / "table1_random.csv").read_text()
    assert re.search(r",mine,known,AttnLRP,PG,", table)
    assert "squared" not in table


def test_compare_tells_scores_of_both_runs_and_what_no_package_brings(left, command, tmp_path):
    other = shutil.copytree(left.root, tmp_path / "other")
    code, out, err = command("compare", str(left.root), str(other))
    assert (code, err) == (0, "")
    assert f"{left.root}: {LACKING}" in out
    for model, task, method in (
        ("known", "mine", "attnlrp"),
        ("known", "pairs", "squared"),
        ("renamed", "mine", "lrp"),
    ):
        pattern = rf"{model} +{task} +float32 +{method} .*same numbers"
        assert bool(re.search(pattern, out)) == (method != "lrp"), pattern


def test_stored_relevance_is_loaded_whatever_brought_its_method_task_or_family(left):
    from closelook.jobs.results import load

    run = load(str(left.root))
    assert f"left out, since no installed package defines it: {', '.join(run.lacking)}" == LACKING
    for method in ("attnlrp", "open_loop", "squared"):
        table = run.relevance("arrow", method=method).to_pylist()
        assert {(row["model"], row["task"]) for row in table} == {
            (model, task) for model in ("known", "renamed") for task in ("mine", "pairs")
        }
        assert all(len(row["tokens"]) == len(row["relevance"]) for row in table)
    assert "pg" in {row["metric"] for row in run.scores("arrow").to_pylist()}
    assert [model.name for model in run.config.models] == ["known", "renamed"]
    assert [method.name for method in run.config.methods] == ["attnlrp", "random"]


@pytest.mark.parametrize("arguments", [("run",), ("gc",), ("prepare",)])
def test_commands_that_write_refuse_a_root_that_lacks_a_package(left, command, arguments):
    code, out, err = command(*arguments, "--root", str(left.root))
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "unknown method 'open_loop'" in err
