"""`ray job submit -- python -m closelook run` and `closelook submit` against a head node, as docs/cluster.md says."""

import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from closelook.jobs.config import RunConfig
from closelook.jobs.store import Store
from closelook.jobs.store.lock import ask_to_stop, run_lock
from tests.jobs.packages.test_example_package import built, using_all
from tests.jobs.small import REPOSITORY, relevance_of
from tests.patience import PATIENCE_S, wait_for

pytestmark = pytest.mark.ray
RAY = str(Path(sys.executable).with_name("ray"))


def free_ports(n: int) -> list[int]:
    """Ports of loopback that nobody gets by chance: above those of Ray's workers, below those that the kernel gives.

    Ray binds them seconds later, and asks the kernel for others before: a head whose port is gone by then ends.
    """
    candidates = list(range(20_000, 32_768))
    random.SystemRandom().shuffle(candidates)
    ports: list[int] = []
    for port in candidates:
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            ports.append(port)
        if len(ports) == n:
            return ports
    raise AssertionError("no port is free")


@pytest.fixture(scope="module")
def head():
    """(address of the dashboard, environment) of a head node in a process group of its own, on loopback."""
    port, dashboard, client, agent = free_ports(4)
    home = Path(tempfile.mkdtemp(prefix="ray-"))  # names of sockets below it are short, which those of pytest are not
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"HOME": str(home), "RAY_TMPDIR": str(home), "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    environment["RAY_AUTH_MODE"] = "token"
    environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # jobs run the head's python
    subprocess.run([RAY, "get-auth-token", "--generate"], env=environment, check=True, capture_output=True)
    options = {
        "node-ip-address": "127.0.0.1",
        "port": port,
        "dashboard-host": "127.0.0.1",
        "dashboard-port": dashboard,
        "ray-client-server-port": client,
        "dashboard-agent-listen-port": agent,
        "num-cpus": 2,
    }
    arguments = [f"--{name}={value}" for name, value in options.items()]
    command = [RAY, "start", "--head", "--block", "--disable-usage-stats", *arguments]
    log = (home / "head.log").open("w")
    process = subprocess.Popen(command, env=environment, start_new_session=True, stdout=log, stderr=log)
    wait_for(lambda: _answers(dashboard) or process.poll() is not None, (home / "head.log").read_text)
    assert process.poll() is None, (home / "head.log").read_text()
    yield f"http://127.0.0.1:{dashboard}", environment
    assert process.poll() is None, (home / "head.log").read_text()
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    log.close()
    shutil.rmtree(home, ignore_errors=True)  # its processes may still be ending


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def submit(head, *arguments: str) -> tuple[int, str]:
    """(exit code, output) of a submitted job."""
    address, environment = head
    where = ["--working-dir", ".", "--runtime-env-json", '{"env_vars": {"PYTHONPATH": "src"}}']
    command = [RAY, "job", "submit", "--address", address, *where, "--", *arguments]
    return _run(command, environment, subprocess.STDOUT)


def submit_for_its_code(head, *arguments: str) -> tuple[int, str]:
    """(exit code, what it printed) of a job that is submitted as deployments do it."""
    process = submitter(head, *arguments)
    out, _ = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out


def submitter(
    head, *arguments: str, package: tuple[str, ...] = ("--working-dir", str(REPOSITORY))
) -> subprocess.Popen[str]:
    """`closelook submit run ...`, by default with the repository as the package of the job."""
    address, environment = head
    command = [sys.executable, "-m", "closelook", "submit", "run", *package, *arguments]
    return subprocess.Popen(
        command,
        env=environment | {"RAY_ADDRESS": address, "PYTHONPATH": str(REPOSITORY / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _run(command: list[str], environment: dict[str, str], errors: int | None) -> tuple[int, str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": errors}
    done = subprocess.run(command, env=environment, cwd=REPOSITORY, text=True, timeout=PATIENCE_S, **pipes)
    return done.returncode, done.stdout


def job(root: Path, config: str = "smoke") -> list[str]:
    return ["python", "-m", "closelook", "run", "--config", config, "--root", str(root)]


def relevance_under(root: Path):
    config = RunConfig.load("smoke", str(root))
    return relevance_of(config, Store(config.root))


@pytest.fixture(scope="module")
def finished(head, tmp_path_factory):
    """(root, output) of a job that nothing disturbed."""
    root = tmp_path_factory.mktemp("finished") / "root"
    code, out = submit(head, *job(root))
    assert code == 0, out
    assert "core_worker.cc" not in out, "what is no error is not shown as one"
    return root, out


@pytest.fixture(scope="module")
def submitted(head, finished, tmp_path_factory):
    """(folder of roots, (exit code, output) by root) of jobs that are submitted at once; none waits for another."""
    folder = tmp_path_factory.mktemp("roots")
    used = Store(str(folder / "used"))
    used.create()
    sent = {
        "finished": (submit, job(finished[0])),
        "used": (submit, job(folder / "used")),
        "bad": (submit, job(folder / "bad", config="smok")),
        "code": (
            submit_for_its_code,
            ["--root", str(folder / "code"), "--config", "smoke", "--set", "methods=[atnlrp]"],
        ),
    }
    with run_lock(used), ThreadPoolExecutor(len(sent)) as threads:
        running = {name: threads.submit(send, head, *arguments) for name, (send, arguments) in sent.items()}
        return folder, {name: future.result() for name, future in running.items()}


def test_a_submitted_job_runs_to_its_report_and_a_second_one_does_nothing(finished, submitted):
    root, out = finished
    assert "attribute: 3 computed, 0 up to date" in out
    assert "succeeded" in out
    assert (root / "report" / "index.html").is_file()
    assert all(table.num_rows for table in relevance_under(root).values())
    assert "nothing to do" in submitted[1]["finished"][1]


def test_the_dashboard_knows_the_processes_that_served_models(head, finished):
    address, environment = head
    token = (Path(environment["HOME"]) / ".ray" / "auth_token").read_text().strip()

    def ask(path: str):
        request = urllib.request.Request(address + path, headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    actors = ask("/logical/actors")["data"]["actors"].values()
    assert "Host" in {actor["actorClass"] for actor in actors}


def test_no_one_without_the_token_is_answered(head):
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"{head[0]}/api/jobs/", timeout=60)


def test_a_job_for_a_root_in_use_is_refused_with_a_line(submitted):
    folder, answers = submitted
    code, out = answers["used"]
    assert code == 1
    assert f"error: {folder / 'used'} is in use by process {os.getpid()}" in out
    assert "computed" not in out


def test_a_submitted_job_with_bad_input_fails_with_its_line(submitted):
    code, out = submitted[1]["bad"]
    assert code == 1
    assert "no config 'smok'" in out


def test_the_exit_code_of_a_submitted_command_is_its_own(submitted):
    """2 is a mistake that trying again would find again; `ray job submit` ends with 1 whatever it is."""
    folder, answers = submitted
    code, out = answers["code"]
    assert code == 2, out
    assert "unknown method 'atnlrp'" in out
    assert not (folder / "code").exists()


def slow(root: Path) -> list[str]:
    """Arguments of a run of some minutes, whose units take some seconds."""
    slow = ("tasks.sva.limit=900", "methods=[{integrated_gradients: {steps: 100}}]")
    return ["--root", str(root), "--config", "smoke", *(word for setting in slow for word in ("--set", setting))]


def shards(root: Path) -> int:
    return len(list(root.glob("relevance/**/*.parquet")))


def stopped(root: Path) -> bool:
    """True where nobody owns the root and all that was committed is whole."""
    return not list(root.glob("lock/*")) and all(pq.read_table(path) for path in root.glob("relevance/**/*.parquet"))


@pytest.mark.nightly  # minutes of jobs
def test_a_job_outlives_who_submitted_it_and_keeps_the_root_from_others(head, tmp_path):
    root = tmp_path / "root"
    lost = submitter(head, *slow(root))
    wait_for(lambda: shards(root) >= 2)
    lost.kill()  # as a pod that is lost
    lost.communicate()

    other = submitter(head, *slow(root))
    out, _ = other.communicate(timeout=PATIENCE_S)
    assert other.returncode == 1
    assert re.search(r"error: \S+/root is in use by process", out)
    before = shards(root)
    wait_for(lambda: shards(root) >= before + 2)

    ask_to_stop(Store(str(root)))
    wait_for(lambda: stopped(root))


@pytest.mark.nightly
def test_a_package_that_is_sent_as_a_wheel_is_there_for_the_driver_and_for_workers(head, tmp_path):
    config, wheel = using_all(tmp_path), built(tmp_path)
    job = submitter(head, "--config", config, "--root", str(tmp_path / "root"), package=("--wheel", str(wheel)))
    out, _ = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 0, out
    assert list((tmp_path / "root" / "entropy").rglob("*.parquet")), "its product"
    assert list((tmp_path / "root" / "relevance").rglob("method=open_loop/*.parquet")), "its method"
