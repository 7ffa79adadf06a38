"""Following a job of a cluster that fails in between, without Ray: a dashboard of this test answers."""

import itertools
import threading
from dataclasses import dataclass, field

import pytest

from closelook.jobs.cluster import submission
from closelook.jobs.cluster.pools import ClusterUnreachable
from closelook.jobs.cluster.submission import Cluster, Deadline, OtherCommand
from closelook.jobs.store import Store, lock
from closelook.jobs.store.lock import run_lock

NEVER = Deadline(float("inf"))
COMMAND = "python -m closelook run"


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
        answers.append(cluster.job_of("s3://bucket/run", COMMAND, {}))

    threads = [threading.Thread(target=submit) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ((name, _),) = dashboard.jobs.items()
    assert sorted(answers) == [(name, False), *[(name, True)] * 7]
    assert dashboard.sent[name]["env_vars"] == {lock.JOB: name, "RAY_JOB_STOP_WAIT_TIME_S": "30"}


def test_a_job_that_has_ended_is_followed_by_the_next_number_and_other_roots_have_other_names(cluster, dashboard):
    first, _ = cluster.job_of("s3://bucket/run", COMMAND, {})
    other, _ = cluster.job_of("s3://bucket/other", COMMAND, {})
    dashboard.ends(first)()
    second, ran_before = cluster.job_of("s3://bucket/run", COMMAND, {"env_vars": {"A": "b"}})
    assert not ran_before
    assert first.rpartition("-")[::2] == (second.rpartition("-")[0], "1")
    assert second.endswith("-2")
    assert other.rpartition("-")[0] != first.rpartition("-")[0]
    assert dashboard.sent[second]["env_vars"]["A"] == "b"
    with pytest.raises(OtherCommand, match=r"in use by the job .*-2, which runs `python -m closelook run`"):
        cluster.job_of("s3://bucket/run", f"{COMMAND} --set seed=1", {})


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
    name, _ = cluster.job_of("/root", COMMAND, {})
    dashboard.script = iter([None, dashboard.ends(name, status, code)])
    assert cluster.follow("/root", name, NEVER, 0) == expected


def test_a_dashboard_that_is_away_for_a_while_is_waited_for_and_its_log_goes_on(
    cluster, dashboard, capsys, monkeypatch
):
    monkeypatch.setattr(submission, "DRAIN_S", 10)
    name, _ = cluster.job_of("/root", COMMAND, {})
    dashboard.log = [
        ["prep", "are: 2\n", RuntimeError("closed")],
        [OSError("refused")],
        ["prepare: ", "2\nattri", "bute"],
    ]
    away = [ConnectionError("refused"), RuntimeError("502"), None]
    dashboard.script = iter([*away, dashboard.ends(name, "SUCCEEDED", 0)])
    assert cluster.follow("/root", name, NEVER, 0) == 0
    assert capsys.readouterr().out == "prepare: 2\nattribute"


def test_a_cluster_that_is_gone_and_one_that_was_started_anew_are_told(cluster, dashboard, monkeypatch):
    name, _ = cluster.job_of("/root", COMMAND, {})
    dashboard.script = iter([dashboard.jobs.clear])
    with pytest.raises(ClusterUnreachable, match=f"lost the job {name}"):
        cluster.follow("/root", name, NEVER, 0)
    monkeypatch.setattr(submission, "PATIENCE_S", 0.05)
    dashboard.script = itertools.repeat(ConnectionError("refused"))
    with pytest.raises(ClusterUnreachable, match="does not answer any more: refused"):
        cluster.follow("/root", name, NEVER, 0)


@pytest.mark.parametrize("owner", ["this job", "another", "nobody"])
def test_at_the_deadline_the_jobs_own_run_is_asked_to_stop_before_ray_is(
    owner, cluster, dashboard, tmp_path, monkeypatch
):
    name, _ = cluster.job_of(str(tmp_path), COMMAND, {})
    store = Store(str(tmp_path))
    asked = []

    def look():
        asked.append((lock.is_asked(store), list(dashboard.stopped)))

    dashboard.script = iter([look] * 40 + [dashboard.ends(name, code=1)])
    monkeypatch.setenv(lock.JOB, name if owner == "this job" else "closelook-0-1")
    if owner == "nobody":
        code = cluster.follow(str(tmp_path), name, Deadline(0), 0.1)
    else:
        with run_lock(store):
            code = cluster.follow(str(tmp_path), name, Deadline(0), 0.1)
    assert code == 124
    politely = [(True, []), (True, [name])] if owner == "this job" else [(False, [name])]
    assert [step for step, _ in itertools.groupby(asked[1:])] == politely
