"""A root that was made with what a package brought, once the package is gone: an error, but for tables in Python."""

import json
import shutil
from types import SimpleNamespace

import pytest

from tests.jobs.forked import Forked
from tests.jobs.packages.test_example_package import installed
from tests.jobs.small import ended, save_model

pytestmark = pytest.mark.nightly  # a run with a package and processes without it
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


def test_stored_relevance_is_loaded_whatever_brought_its_method_task_or_family(left):
    from closelook.jobs.results import load

    run = load(str(left.root))
    for method in ("attnlrp", "open_loop", "squared"):
        table = run.relevance("arrow", method=method).to_pylist()
        assert {(row["model"], row["task"]) for row in table} == {
            (model, task) for model in ("known", "renamed") for task in ("mine", "pairs")
        }
        assert all(len(row["tokens"]) == len(row["relevance"]) for row in table)
    assert "pg" in {row["metric"] for row in run.scores("arrow").to_pylist()}


@pytest.mark.parametrize("arguments", [("run",), ("gc",), ("prepare",), ("status",), ("report",)])
def test_commands_refuse_a_root_that_lacks_a_package(left, command, arguments):
    code, out, err = command(*arguments, "--root", str(left.root))
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "unknown method 'open_loop'" in err
