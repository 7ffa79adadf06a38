"""Jobs of a Ray cluster: submits a command through the dashboard, follows it, and stops it.

The name of a job is a hash of its command line, which names the root, and a number. Who submits a command again follows
the job that runs it; the lock of the root refuses another command.
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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from closelook.jobs.cluster.pools import ClusterUnreachable
from closelook.jobs.store.retry import one_line

if TYPE_CHECKING:
    from ray.job_submission import JobDetails, JobSubmissionClient

POLL_S = 0.5
PATIENCE_S = 120.0  # after so long without an answer, the dashboard counts as lost
DRAIN_S = 5.0  # time for the last lines of a job's log to arrive
KILL_S = 30  # seconds between Ray's SIGTERM and SIGKILL, for units in progress
RETRY, TIMED_OUT, TERMINATED = 1, 124, 128 + signal.SIGTERM  # exit codes; 124 is that of timeout(1)


@dataclass
class Deadline:
    """The time at which a job is to be stopped. SIGTERM to this process brings it forward to now."""

    at: float  # by time.monotonic()
    terminated: bool = False

    @property
    def reached(self) -> bool:
        """True once the time has come, or SIGTERM."""
        return self.terminated or time.monotonic() >= self.at

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

        logging.getLogger("ray").setLevel(logging.ERROR)  # it logs every file that is not sent
        self.address = address
        try:
            self._client: JobSubmissionClient = JobSubmissionClient(address)
        except (OSError, RuntimeError) as error:
            raise ClusterUnreachable(f"no Ray cluster takes jobs at {address}: {one_line(error)}") from None

    def job_of(self, command: str, environment: Mapping[str, Any]) -> tuple[str, bool]:
        """(name of the job that runs `command`, True if it was running already); submits it if needed.

        `environment` is Ray's runtime environment. Raises ClusterUnreachable if the cluster refuses the job.
        """
        prefix = f"closelook-{hashlib.sha256(command.encode()).hexdigest()[:12]}-"
        while True:
            known = {name: job for name, job in self._jobs().items() if name.startswith(prefix)}
            for name, job in known.items():
                if not job.status.is_terminal():
                    return name, True
            number = 1 + max((int(name.removeprefix(prefix)) for name in known), default=0)
            variables = {"RAY_JOB_STOP_WAIT_TIME_S": str(KILL_S), **environment.get("env_vars", {})}
            try:
                self._client.submit_job(
                    entrypoint=command,
                    submission_id=f"{prefix}{number}",
                    runtime_env={**environment, "env_vars": variables},
                )
            except RuntimeError as error:
                if "already exists" in str(error):  # another client submitted it first
                    continue
                raise ClusterUnreachable(f"{self.address} takes no job: {one_line(error)}") from None
            return f"{prefix}{number}", False

    def _jobs(self) -> dict[str, JobDetails]:
        """All jobs of the cluster, ended ones included, by name."""
        return {job.submission_id: job for job in self._client.list_jobs() if job.submission_id is not None}

    def follow(self, name: str, deadline: Deadline) -> int:
        """Print the job's output until it ends, and stop it at the deadline. Returns its exit code.

        Raises ClusterUnreachable if the cluster does not answer any more, or no longer knows the job.
        """
        log = threading.Thread(target=self._print_log, args=(name,), daemon=True)
        log.start()
        answered, stop_at = time.monotonic(), 0.0
        while True:
            try:
                job = self._jobs().get(name)
                answered = time.monotonic()
                if deadline.reached and answered >= stop_at:
                    self._client.stop_job(name)
                    stop_at = answered + KILL_S  # asked again then, since a request may get lost
            except (OSError, RuntimeError) as error:
                if time.monotonic() - answered > PATIENCE_S:
                    raise ClusterUnreachable(f"{self.address} does not answer any more: {one_line(error)}") from None
            else:
                if job is None:
                    raise ClusterUnreachable(f"the cluster at {self.address} lost the job {name}: it was started anew")
                if job.status.is_terminal():
                    log.join(DRAIN_S)
                    return _exit_code(job, deadline)
            time.sleep(POLL_S)

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


def _exit_code(job: JobDetails, deadline: Deadline) -> int:
    """The exit code for a job that has ended: its own, or that of the deadline if the deadline ended it."""
    from ray.job_submission import JobStatus

    if job.status == JobStatus.SUCCEEDED:
        return 0
    code = job.driver_exit_code or RETRY
    if code < 0:  # a signal ended the job
        code = RETRY
    if deadline.reached and code in (RETRY, TERMINATED):
        return TERMINATED if deadline.terminated else TIMED_OUT
    return code
