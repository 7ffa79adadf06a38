"""Send a command to a Ray cluster, follow it, and end as it ends: `python -m jobs.commands.submit run ...`.

`ray job submit` ends with 1 whatever went wrong. Here the exit code is the command's own, so that who started it can
tell what is worth another try (1: a store, a hub, a node) from what is wrong and stays so (2: a config, a model).
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence

RETRY = 1  # also of a cluster that does not answer, and of a job that was stopped or lost


def submit(arguments: Sequence[str], address: str) -> int:
    """Run `closelook ARGUMENTS` on the cluster whose dashboard is at `address`; its exit code."""
    import shlex

    from ray.job_submission import JobStatus, JobSubmissionClient

    try:
        client = JobSubmissionClient(address)
        job = client.submit_job(entrypoint=shlex.join(["python", "-m", "jobs", *arguments]))
    except (ConnectionError, RuntimeError) as error:
        print(f"error: no Ray cluster takes jobs at {address}: {' '.join(str(error).split())}", file=sys.stderr)
        return RETRY
    asyncio.run(_follow(client, job))
    info = client.get_job_info(job)
    if info.status == JobStatus.SUCCEEDED:
        return 0
    return info.driver_exit_code or RETRY


async def _follow(client: object, job: str) -> None:
    """The lines that the job prints, until it ends."""
    async for lines in client.tail_job_logs(job):  # type: ignore[attr-defined]
        print(lines, end="", flush=True)


if __name__ == "__main__":
    if "RAY_ADDRESS" not in os.environ:
        sys.exit("error: set RAY_ADDRESS to the cluster's dashboard, as http://closelook-head-svc:8265")
    sys.exit(submit(sys.argv[1:], os.environ["RAY_ADDRESS"]))
