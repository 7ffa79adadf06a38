"""Following a job of a cluster that fails in between, without Ray: a dashboard of this test answers."""

import itertools
import threading
from dataclasses import dataclass, field

import pytest

from closelook.jobs.cluster import submission
from closelook.jobs.cluster.pools import ClusterUnreachable
from closelook.jobs.cluster.submission import Cluster, Deadline

NEVER = Deadline(float("inf"))
COMMAND = "python -m closelook run --root s3://bucket/run"


@dataclass
class Dashboard:
    """Answers as JobSubmissionClient does. `next(script)` is called before each listing of jobs."""

    jobs: dict = field(default_factory=dict)  # status, exit code and command by name
    script: object = field(default_factory=lambda: itertools.repeat(None))
    log: list = field(default_factory=list)  # what each connection for the log gives: texts, or an error
    stopped: list = field(default_factory=list)
    sent: dict = field(default_factory=dict)  # runtime environments
    lock: threading.Lock = field(default_factory=threading.Lock)

    def list_jobs(self):
        # Here, as a Ray binds to loopback only where it is told so before the first test imports it.
        from ray.job_submission import JobDetails, JobType

        step = next(self.script)
        if isinstance(step, Exception):
            raise step
        if callable(step):
            step()
        return [
            JobDetails(
                type=JobType.SUBMISSION, submission_id=name, status=status, driver_exit_code=code, entrypoint=command
            )
            for name, (status, code, command) in self.jobs.items()
        ]

    def submit_job(self, entrypoint, submission_id, runtime_env):
        with self.lock:
            if submission_id in self.jobs:
                raise RuntimeError(f"Request failed: Job with submission_id {submission_id} already exists.")
            self.jobs[submission_id] = ("RUNNING", None, entrypoint)
            self.sent[submission_id] = runtime_env

    def stop_job(self, name):
        self.stopped.append(name)

    async def tail_job_logs(self, name):
        for text in self.log.pop(0):
            if isinstance(text, Exception):
                raise text
            yield text

    def ends(self, name, status="FAILED", code=None):
        return lambda: self.jobs.update({name: (status, code, COMMAND)})


@pytest.fixture
def dashboard(monkeypatch):
    dashboard = Dashboard(log=[[]])
    monkeypatch.setattr("ray.job_submission.JobSubmissionClient", lambda address: dashboard)
    for name in ("POLL_S", "DRAIN_S"):
        monkeypatch.setattr(submission, name, 0.01)
    return dashboard


@pytest.fixture
def cluster(dashboard):
    return Cluster("http://head:8265")


def test_of_many_who_submit_at_once_one_does_and_the_others_follow(cluster, dashboard):
    together, answers = threading.Barrier(8), []

    def submit():
        together.wait()
        answers.append(cluster.job_of(COMMAND, {}))

    threads = [threading.Thread(target=submit) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ((name, _),) = dashboard.jobs.items()
    assert sorted(answers) == [(name, False), *[(name, True)] * 7]
    assert dashboard.sent[name]["env_vars"] == {"RAY_JOB_STOP_WAIT_TIME_S": "30"}


def test_a_job_that_has_ended_is_followed_by_the_next_number_and_other_commands_have_other_names(cluster, dashboard):
    first, _ = cluster.job_of(COMMAND, {})
    other, _ = cluster.job_of(f"{COMMAND} --set seed=1", {})
    dashboard.ends(first)()
    second, ran_before = cluster.job_of(COMMAND, {"env_vars": {"A": "b"}})
    assert not ran_before
    assert first.rpartition("-")[::2] == (second.rpartition("-")[0], "1")
    assert second.endswith("-2")
    assert other.rpartition("-")[0] != first.rpartition("-")[0]
    assert dashboard.sent[second]["env_vars"]["A"] == "b"


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        ("SUCCEEDED", 0, 0),
        ("FAILED", 2, 2),
        ("FAILED", 1, 1),
        ("FAILED", None, 1),
        ("FAILED", -9, 1),
        ("STOPPED", None, 1),
    ],
)
def test_the_exit_code_is_the_jobs_own(status, code, expected, cluster, dashboard):
    name, _ = cluster.job_of(COMMAND, {})
    dashboard.script = iter([None, dashboard.ends(name, status, code)])
    assert cluster.follow(name, NEVER) == expected


def test_a_dashboard_that_is_away_for_a_while_is_waited_for_and_its_log_goes_on(
    cluster, dashboard, capsys, monkeypatch
):
    monkeypatch.setattr(submission, "DRAIN_S", 10)
    name, _ = cluster.job_of(COMMAND, {})
    dashboard.log = [
        ["prep", "are: 2\n", RuntimeError("closed")],
        [OSError("refused")],
        ["prepare: ", "2\nattri", "bute"],
    ]
    away = [ConnectionError("refused"), RuntimeError("502"), None]
    dashboard.script = iter([*away, dashboard.ends(name, "SUCCEEDED", 0)])
    assert cluster.follow(name, NEVER) == 0
    assert capsys.readouterr().out == "prepare: 2\nattribute"


def test_a_cluster_that_is_gone_and_one_that_was_started_anew_are_told(cluster, dashboard, monkeypatch):
    name, _ = cluster.job_of(COMMAND, {})
    dashboard.script = iter([dashboard.jobs.clear])
    with pytest.raises(ClusterUnreachable, match=f"lost the job {name}"):
        cluster.follow(name, NEVER)
    monkeypatch.setattr(submission, "PATIENCE_S", 0.05)
    dashboard.script = itertools.repeat(ConnectionError("refused"))
    with pytest.raises(ClusterUnreachable, match="does not answer any more: refused"):
        cluster.follow(name, NEVER)


@pytest.mark.parametrize(("deadline", "code"), [(Deadline(0), 124), (Deadline(float("inf"), terminated=True), 143)])
def test_at_the_deadline_and_after_sigterm_ray_stops_the_job_and_is_asked_again_where_that_was_lost(
    deadline, code, cluster, dashboard, monkeypatch
):
    monkeypatch.setattr(submission, "KILL_S", 0.05)
    name, _ = cluster.job_of(COMMAND, {})
    dashboard.script = iter([None] * 20 + [dashboard.ends(name, code=1)])
    assert cluster.follow(name, deadline) == code
    assert 1 < len(dashboard.stopped) < 20
    assert set(dashboard.stopped) == {name}
