"""The wheel in an empty environment, outside of the repository: all files are there, and a run has a user's method."""

import json
import re
import shutil
import subprocess
import tempfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from closelook.evaluation.schema import SCORES
from closelook.jobs.store import Store
from tests.installed import ROOMS, build_wheel, make_environment
from tests.jobs.small import REPOSITORY
from tests.packages import install

EXTENDING = (REPOSITORY / "docs" / "extend.md").read_text(encoding="utf-8")
SECRET = "hunter2-never-to-be-seen"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("packages"))


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """(folder of the environment, variables with which a process is in it)."""
    folder = tmp_path_factory.mktemp("environment")
    return folder, make_environment(folder, wheel)


def test_the_wheel_holds_every_file_of_the_packages_and_the_licences(wheel):
    packed = set(zipfile.ZipFile(wheel).namelist())
    written = {
        f"closelook/{path.relative_to(REPOSITORY).as_posix()}"
        for name in ROOMS
        for path in (REPOSITORY / name).rglob("*")
        if path.is_file() and path.parent.name not in ("__pycache__", "images")  # pictures of the README
    }
    front = {
        path.relative_to(REPOSITORY / "src").as_posix()
        for pattern in ("*.py", "py.typed", "explaining/*.py")
        for path in (REPOSITORY / "src" / "closelook").glob(pattern)
    }
    assert {path for path in packed if ".dist-info/" not in path} == written | front
    licences = {path.rpartition("/")[2] for path in packed if ".dist-info/licenses/" in path}
    assert licences == {"LICENSE", "NOTICE"}


def block(language: str, *words: str) -> str:
    """The block of docs/extend.md that holds all `words`."""
    every = re.findall(rf"^```{language}\n(.*?)^```", EXTENDING, re.S | re.M)
    (match,) = {code for code in every if all(word in code for word in words)}
    return match


@pytest.fixture(scope="module")
def run(environment, tmp_path_factory):
    """Run a command in the environment, in `run.folder` outside of the repository: (stdout, stderr)."""
    _, variables = environment
    folder = tmp_path_factory.mktemp("outside")

    def run(*command: str, **more: str) -> tuple[str, str]:
        done = subprocess.run(command, env=variables | more, cwd=folder, text=True, capture_output=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout, done.stderr

    run.folder = folder
    return run


ROW = {"text": "The keys to the cabinet ___ old.", "target": "are", "foil": "is", "evidence": "keys"}


@pytest.fixture(scope="module")
def mine(environment, run):
    """(output, folder of logs) of a run on Ray with the first method of docs/extend.md, beside secrets."""
    [site] = environment[0].glob("lib/python*/site-packages")
    entries = tomllib.loads(block("toml", "closelook.methods"))["project"]["entry-points"]["closelook.methods"]
    install(site, "my_package", block("python", "NEAREST = Method"), methods=entries)
    (run.folder / "mine.jsonl").write_text(json.dumps(ROW))
    settings = ("methods=[attnlrp, nearest, random]", "tasks={mine: {source: samples, path: mine.jsonl}}")
    arguments = ("--config", "smoke", "--root", "runs/mine", "--set", settings[0], "--set", settings[1])
    secrets = dict.fromkeys(("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "HF_TOKEN"), SECRET)
    logs = tempfile.mkdtemp(prefix="ray-")  # names of sockets below it are short
    yield run("closelook", "run", *arguments, RAY_TMPDIR=logs, **secrets), Path(logs)
    shutil.rmtree(logs)


@pytest.mark.nightly
@pytest.mark.ray
def test_no_secret_of_the_environment_reaches_the_store_or_a_log(run, mine):
    printed, logs = mine
    root = run.folder / "runs" / "mine"
    written = [path for folder in (root, logs) for path in folder.rglob("*") if path.is_file()]
    assert {"manifest", "scores"} <= {path.parent.name for path in written}
    assert any(path.suffix == ".log" for path in written)
    assert SECRET not in "".join(printed)
    assert [path for path in written if SECRET.encode() in path.read_bytes()] == []


@pytest.mark.nightly
@pytest.mark.ray
def test_a_method_of_ones_own_is_in_the_report_of_a_run(environment, run, mine):
    folder, _ = environment
    code = "import closelook; from closelook import jobs; print(closelook.__file__, jobs.__file__)"
    where, _ = run("python", "-c", code)
    assert [Path(path).is_relative_to(folder) for path in where.split()] == [True, True]
    (out, _), _ = mine
    assert "attribute: 3 computed, 0 up to date" in out
    scores = Store(str(run.folder / "runs" / "mine")).read("scores", SCORES).to_pylist()
    assert {row["task"] for row in scores} == {"mine"}
    assert {row["n"] for row in scores if row["metric"] == "accuracy"} == {1}
    assert "Nearest" in (run.folder / "runs/mine/report/numbers.csv").read_text()
