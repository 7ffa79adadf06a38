"""Submits and follows jobs on a Ray cluster through its dashboard. A root has at most one job at a time.

The name of a job is a hash of the root and a number. Ray accepts a name only once, so if several clients submit a job
for the same root at the same time, they use the same name, and all but one are refused.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from closelook.jobs.cluster.pools import ClusterUnreachable
from closelook.jobs.store import Store, StoreError, lock
from closelook.jobs.store.retry import one_line

if TYPE_CHECKING:
    from ray.job_submission import JobDetails, JobSubmissionClient

POLL_S = 0.5
PATIENCE_S = 120.0  # after so long without an answer, the dashboard counts as lost
DRAIN_S = 5.0  # time for the last lines of a job's log to arrive
#: Seconds between Ray's SIGTERM and SIGKILL, for units in progress; Ray's default is shorter than they may take.
KILL_S = 30
_LOGGERS = ("ray", "ray.dashboard.modules.job.sdk", "ray.dashboard.modules.dashboard_sdk")
RETRY, TIMED_OUT, TERMINATED = 1, 124, 128 + signal.SIGTERM  # exit codes; 124 is that of timeout(1)


class OtherCommand(RuntimeError):
    """A job with another command is running for the root."""


@dataclass
class Deadline:
    """The time at which a job is to be stopped. SIGTERM to this process brings it forward to now."""

    at: float  # by time.monotonic()
    terminated: bool = field(default=False)

    @property
    def reached(self) -> bool:
        """True once the time has come, or SIGTERM."""
        return self.terminated or time.monotonic() >= self.at

    @property
    def exit_code(self) -> int:
        """The exit code of a job that the deadline ended: TERMINATED after SIGTERM, else TIMED_OUT."""
        return TERMINATED if self.terminated else TIMED_OUT

    @contextmanager
    def heeding(self) -> Iterator[None]:
        """Inside the block, SIGTERM sets `terminated` instead of ending this process."""

        def terminate(number: int, frame: Any) -> None:
            self.terminated = True

        before = signal.signal(signal.SIGTERM, terminate)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)


class Cluster:
    """A Ray cluster that jobs are submitted to."""

    def __init__(self, address: str) -> None:
        """`address` is the URL of its dashboard. Raises ClusterUnreachable if nothing answers there."""
        from ray.job_submission import JobSubmissionClient

        for name in _LOGGERS:  # they log every file that is not sent and every connection
            logging.getLogger(name).setLevel(logging.ERROR)
        self.address = address
        try:
            self._client: JobSubmissionClient = JobSubmissionClient(address)
        except (OSError, RuntimeError) as error:
            raise ClusterUnreachable(f"no Ray cluster takes jobs at {address}: {one_line(error)}") from None

    def job_of(self, root: str, command: str, environment: Mapping[str, Any]) -> tuple[str, bool]:
        """(name of the job that runs `command` for the root, True if it was running already); submits it if needed.

        `environment` is Ray's runtime environment. Raises OtherCommand if a job with another command is running for the
        root, ClusterUnreachable if the cluster refuses the job.
        """
        while True:
            known = self._jobs_of(root)
            for name, job in known.items():
                if not job.status.is_terminal():
                    if job.entrypoint != command:
                        raise OtherCommand(f"{root} is in use by the job {name}, which runs `{job.entrypoint}`")
                    return name, True
            number = 1 + max((int(name.rpartition("-")[2]) for name in known), default=0)
            name = f"{_prefix(root)}{number}"
            variables = {lock.JOB: name, "RAY_JOB_STOP_WAIT_TIME_S": str(KILL_S)}
            variables |= environment.get("env_vars", {})
            try:
                self._client.submit_job(
                    entrypoint=command, submission_id=name, runtime_env={**environment, "env_vars": variables}
                )
            except RuntimeError as error:
                if "already exists" in str(error):  # another client submitted it first
                    continue
                raise ClusterUnreachable(f"{self.address} takes no job: {one_line(error)}") from None
            return name, False

    def _jobs_of(self, root: str) -> dict[str, JobDetails]:
        """All jobs of a root, ended ones included, by name."""
        jobs = {job.submission_id: job for job in self._client.list_jobs() if job.submission_id is not None}
        return {name: job for name, job in jobs.items() if name.startswith(_prefix(root))}

    def follow(self, root: str, name: str, deadline: Deadline, grace_s: float) -> int:
        """Print the job's output until it ends. Returns its exit code; RETRY if a signal ended it.

        At the deadline the job is stopped: first as `closelook stop` does, and after `grace_s` seconds by Ray. Raises
        ClusterUnreachable if the cluster does not answer any more, or no longer knows the job.
        """
        log = threading.Thread(target=self._print_log, args=(name,), daemon=True)
        log.start()
        stopping: Iterator[None] | None = None
        answered = time.monotonic()
        while True:
            try:
                job = self._jobs_of(root).get(name)
                answered = time.monotonic()
            except (OSError, RuntimeError) as error:
                if time.monotonic() - answered > PATIENCE_S:
                    raise ClusterUnreachable(f"{self.address} does not answer any more: {one_line(error)}") from None
            else:
                if job is None:
                    raise ClusterUnreachable(f"the cluster at {self.address} lost the job {name}: it was started anew")
                if job.status.is_terminal():
                    log.join(DRAIN_S)
                    return _exit_code(job, deadline)
                if deadline.reached:
                    stopping = stopping or self._stopping(root, name, grace_s)
                    with suppress(OSError, RuntimeError):
                        next(stopping, None)
            time.sleep(POLL_S)

    def _stopping(self, root: str, name: str, grace_s: float) -> Iterator[None]:
        """A generator that stops a job step by step: each `next` takes a step if its time has come."""
        asked = time.monotonic()
        if _ask_to_stop(root, name):
            while time.monotonic() - asked < grace_s:
                yield
        while True:
            self._client.stop_job(name)  # repeated, since an answer may get lost; asking twice is no error
            asked = time.monotonic()
            while time.monotonic() - asked < KILL_S:
                yield

    def _print_log(self, name: str) -> None:
        """Print the job's output until it ends; if the connection is lost, reconnect and skip what was printed."""
        shown = 0

        async def print_on() -> None:
            nonlocal shown
            seen = 0
            async for text in self._client.tail_job_logs(name):
                fresh = text[max(0, shown - seen) :]
                seen += len(text)
                if fresh:
                    shown = seen
                    print(fresh, end="", flush=True)

        while True:
            with suppress(Exception):  # any error of the connection: `follow` decides by the job's state when to end
                asyncio.run(print_on())
                return
            time.sleep(POLL_S)


def _prefix(root: str) -> str:
    """The beginning of the names of all jobs of a root."""
    return f"closelook-{hashlib.sha256(root.encode()).hexdigest()[:12]}-"


def _exit_code(job: JobDetails, deadline: Deadline) -> int:
    """The exit code for a job that has ended: its own, or that of the deadline if the deadline ended it."""
    from ray.job_submission import JobStatus

    if job.status == JobStatus.SUCCEEDED:
        return 0
    code = job.driver_exit_code or RETRY
    if code < 0:  # a signal ended the job
        code = RETRY
    return deadline.exit_code if deadline.reached and code in (RETRY, TERMINATED) else code


def _ask_to_stop(root: str, name: str) -> bool:
    """Ask the run of this job to stop, as `closelook stop` does.

    Returns False if this job is not known to own the root, so that the run of somebody else is never stopped.
    """
    with suppress(OSError, StoreError):  # the cluster may reach the root where this machine does not
        store = Store(root)
        owner = lock.owner_of(store)
        if owner is not None and owner.job == name:
            lock.ask_to_stop(store)
            return True
    return False
