"""The wheel in an empty environment, outside of the repository: all files are there, and the README's blocks run."""

import re
import shlex
import shutil
import subprocess
import tempfile
import tomllib
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from evaluation.schema import SCORES
from jobs.store import Store
from tests.installed import ROOMS, build_wheel, make_environment
from tests.jobs.small import REPOSITORY
from tests.packages import install

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
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
    room = re.compile(rf"({'|'.join(ROOMS)})/")
    written = {
        path.relative_to(REPOSITORY).as_posix()
        for name in ROOMS
        for path in (REPOSITORY / name).rglob("*")
        if path.is_file() and path.parent.name not in ("__pycache__", "images")  # pictures of the README
    }
    front = "jobs/front/"
    expected = {path.removeprefix(front) for path in written}
    assert expected - packed == set()
    assert {path for path in packed if room.match(path)} <= expected
    assert not [path for path in packed if path.startswith(("benchmarks/", "tools/"))]
    licences = {path.name for path in (REPOSITORY / "docs" / "licences").iterdir()}
    assert {path.rpartition("/")[2] for path in packed if ".dist-info/licenses/" in path} == licences


def block(language: str, *words: str) -> str:
    """The README's block that holds all `words`."""
    every = re.findall(rf"^```{language}\n(.*?)^```", README, re.S | re.M)
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


OWN = block("bash", "mine.jsonl").rstrip()


@pytest.fixture(scope="module")
def mine(environment, run):
    """(output, folder of logs) of a run on Ray, of the README's samples and method, in an environment with secrets."""
    [site] = environment[0].glob("lib/python*/site-packages")
    entries = tomllib.loads(block("toml", "closelook.methods"))["project"]["entry-points"]["closelook.methods"]
    install(site, "my_package", block("python", "NEAREST = Method"), methods=entries)
    settings = "--config smoke --set 'methods=[attnlrp, nearest, random]'"
    secrets = dict.fromkeys(("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "HF_TOKEN"), SECRET)
    logs = tempfile.mkdtemp(prefix="ray-")  # names of sockets below it are short
    yield run("bash", "-ec", f"{OWN} {settings}", RAY_TMPDIR=logs, **secrets), Path(logs)
    shutil.rmtree(logs)


@pytest.mark.nightly
@pytest.mark.ray
def test_no_secret_of_the_environment_reaches_the_store_or_a_log(run, mine):
    printed, logs = mine
    root = run.folder / "runs" / "mine"
    written = [path for folder in (root, logs) for path in folder.rglob("*") if path.is_file()]
    assert {"manifest", "runs", "scores"} <= {path.parent.name for path in written}
    assert any(path.suffix == ".log" for path in written)
    assert SECRET not in "".join(printed)
    assert [path for path in written if SECRET.encode() in path.read_bytes()] == []


@pytest.mark.nightly
@pytest.mark.ray
def test_the_readmes_blocks_run_where_only_the_wheel_is(environment, run, mine):
    """A sentence and a model from a folder, own samples with an own method, their scores, what another run changes."""
    folder, _ = environment
    [site] = folder.glob("lib/python*/site-packages")
    shutil.copytree(site / "evaluation/benchmark/demo/models/gpt2", run.folder / "gpt2")
    explaining = [
        ("python", "-c", block("python", "closelook.explain").replace("demo/gpt2", "./gpt2")),
        ("bash", "-ec", block("bash", "closelook explain").replace("demo/gpt2", "./gpt2")),
    ]
    arguments = shlex.split(OWN.rpartition("\ncloselook ")[2])
    inline = [str(folder / "bin" / "python"), str(REPOSITORY / "tests" / "jobs" / "inline.py")]
    other = (*inline, *arguments, "--config", "smoke", "--root", "runs/other", "--set", "models.gpt2.id=demo/llama")
    where = ("python", "-c", "import closelook, jobs; print(closelook.__file__, jobs.__file__)")
    reading = ("python", "-c", block("python", "closelook.load"))
    with ThreadPoolExecutor(2) as threads:  # none needs another
        _, *explained, printed, where = [
            out for out, _ in threads.map(lambda command: run(*command), [other, *explaining, reading, where])
        ]

    assert [Path(path).is_relative_to(folder) for path in where.split()] == [True, True]
    shown = block("text", "alti_logit  The").replace("demo/gpt2", "gpt2")
    assert [out.replace("./", "") for out in explained] == [shown, shown]

    (out, _), _ = mine
    assert "attribute: 3 computed, 0 up to date" in out
    scores = Store(str(run.folder / "runs" / "mine")).read("scores", SCORES).to_pylist()
    assert {row["task"] for row in scores} == {"mine"}
    assert {row["n"] for row in scores if row["metric"] == "accuracy"} == {2}
    assert "Nearest" in (run.folder / "runs/mine/report/report.md").read_text()
    assert {"attnlrp", "nearest", "random", "value"} <= set(printed.split())

    changed, _ = run("bash", "-ec", block("bash", "closelook compare"))
    assert "models.gpt2.id" in changed
    assert re.search(r"gpt2 +mine +float32 +attnlrp", changed), changed
