"""`ray job submit --working-dir . -- python -m jobs run` against a head node, as the README says."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.ray
REPOSITORY = Path(__file__).parents[2]
RAY = str(Path(sys.executable).with_name("ray"))


def free_ports(n: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


@pytest.fixture(scope="module")
def head(tmp_path_factory):
    """(address of the dashboard, environment) of a head node in a process group of its own, on loopback."""
    port, dashboard, client, agent = free_ports(4)
    home = tmp_path_factory.mktemp("home")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"HOME": str(home), "RAY_TMPDIR": str(home), "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # jobs run the head's python
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
    deadline = time.monotonic() + 90
    while not _answers(dashboard):
        assert process.poll() is None, (home / "head.log").read_text()
        assert time.monotonic() < deadline, (home / "head.log").read_text()
        time.sleep(0.2)
    yield f"http://127.0.0.1:{dashboard}", environment
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    log.close()


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def submit(head, *arguments: str) -> subprocess.CompletedProcess[str]:
    address, environment = head
    command = [RAY, "job", "submit", "--address", address, "--working-dir", ".", "--", *arguments]
    return subprocess.run(command, env=environment, cwd=REPOSITORY, capture_output=True, text=True, timeout=300)


def test_a_submitted_job_runs_to_its_report_and_a_second_one_does_nothing(head, tmp_path):
    job = ["python", "-m", "jobs", "run", "--config", "smoke", "--root", str(tmp_path / "root")]
    first = submit(head, *job)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "attribute: 3 computed, 0 up to date" in first.stdout
    assert "succeeded" in first.stdout
    assert (tmp_path / "root" / "report" / "index.html").is_file()
    second = submit(head, *job)
    assert "nothing to do" in second.stdout


def test_a_submitted_job_with_bad_input_fails_with_its_line(head, tmp_path):
    job = ["python", "-m", "jobs", "run", "--config", "smok", "--root", str(tmp_path / "root")]
    failed = submit(head, *job)
    assert failed.returncode == 1
    assert "no config 'smok'" in failed.stdout
    assert not (tmp_path / "root").exists()
