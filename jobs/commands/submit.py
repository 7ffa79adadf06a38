"""`closelook submit`: sends a command to a Ray cluster as a job, follows it, and exits with its exit code.

The exit code tells whether another try may help: 1 for a store, hub or node that failed, 2 for a wrong config or model.
`ray job submit` exits with 1 in either case.
"""

from __future__ import annotations

import asyncio
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from closelook.jobs.commands.options import RUNS, RunOptions, WaitingOptions, command
from closelook.jobs.stages.record import STAGES
from closelook.lrp_core.records.types import UserError
from closelook.terminal import complain, say

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

Stage = Annotated[str, typer.Argument(metavar="COMMAND", help="The command: run, or the name of a stage.")]
Address = Annotated[
    str | None, typer.Option("--address", envvar="RAY_ADDRESS", help="The cluster's dashboard, as http://HEAD:8265.")
]
Folder = Annotated[
    Path | None,
    typer.Option("--working-dir", help="The folder to send; the job runs the package in it, as in a clone."),
]
Wheels = Annotated[
    list[Path] | None, typer.Option("--wheel", help="A package that every node installs for the job; repeatable.")
]

KILL_S = 30  # seconds between Ray's SIGTERM and SIGKILL of a job, for units in progress
POLL_S = 0.5
#: Patterns, as of .gitignore, of files in a working directory that are never sent: keys, tokens and passwords.
SECRETS = (
    ".env",
    ".env.*",
    ".envrc",
    ".ssh",
    ".aws",
    ".azure",
    ".boto",
    ".config",
    ".docker",
    ".gnupg",
    ".huggingface",
    ".cache",
    ".kube",
    ".ray",
    ".netrc",
    ".pgpass",
    ".pypirc",
    ".npmrc",
    ".git-credentials",
    ".gitconfig",
    ".git",
    ".venv",
    "id_rsa*",
    "id_dsa*",
    "id_ecdsa*",
    "id_ed25519*",
    "*.key",
    "*.pem",
    "*.p12",
    "*.pfx",
    "*.ppk",
    "*.jks",
    "*.kdbx",
    "*.tfstate",
    "credentials",
    "*credentials*.json",
    "service-account*.json",
)


@command(RUNS, "submit run --address http://HEAD:8265 --config demo --root s3://bucket/run")
def submit(
    run: RunOptions,
    waiting: WaitingOptions,
    stage: Stage = "run",
    address: Address = None,
    working_dir: Folder = None,
    wheel: Wheels = None,
) -> None:
    """Run a command as a job of a Ray cluster, print its log, and exit with its exit code.

    Ctrl-C only ends following: `closelook stop ROOT` or `ray job stop` ends the job.
    """
    if stage not in ("run", *STAGES):
        raise UserError(f"no stage {stage!r}: run, {', '.join(STAGES)}")
    if address is None or not address.startswith(("http://", "https://")):
        raise UserError("give the address of the cluster's dashboard, as --address or RAY_ADDRESS: http://HEAD:8265")
    if run.root is None:
        raise UserError("add --root with the folder or URL of all results, which every node must reach")
    entrypoint = command_line(stage, run, waiting.wait, working_dir)

    from ray.job_submission import JobSubmissionClient

    from closelook.jobs.cluster.pools import ClusterUnreachable

    with environment(run.config, working_dir, wheel or ()) as sent:
        try:
            client = JobSubmissionClient(address)
            job = client.submit_job(entrypoint=entrypoint, runtime_env=sent)
        except (OSError, RuntimeError) as error:
            raise ClusterUnreachable(f"no Ray cluster takes jobs at {address}: {error}") from None
    say(f"job {job} was submitted")
    try:
        code = follow(client, job)
    except KeyboardInterrupt:
        complain(f"the job goes on: `closelook stop {run.root}` ends it")
        raise typer.Exit(130) from None
    raise typer.Exit(code)


def command_line(stage: str, run: RunOptions, wait_s: float, folder: Path | None) -> str:
    """The command line of the job. Raises UserError for a config file outside of the `folder` that is sent."""
    from closelook.jobs.store import Store

    words = ["python", "-m", "closelook", stage, "--root", Store(run.root or "").root]
    if run.config is not None:
        words += ["--config", _config_there(run.config, folder)]
    for override in run.set or ():
        words += ["--set", override]
    if wait_s:
        words += ["--wait", f"{wait_s:g}"]
    return shlex.join(words)


def _config_there(config: str, folder: Path | None) -> str:
    """The config as the job names it: a shipped name, or its path in the folder that is sent."""
    file = Path(config)
    if not file.is_file():
        return config
    if folder is None:
        return file.name
    try:
        return str(file.resolve().relative_to(folder.resolve()))
    except ValueError:
        raise UserError(
            f"the config {file} is outside of --working-dir {folder}, and nothing else is sent: move it there"
        ) from None


@contextmanager
def environment(config: str | None, folder: Path | None, wheels: Sequence[Path]) -> Iterator[dict[str, Any]]:
    """Ray's runtime environment of the job: its wheels and folder; a config alone is sent in a temporary folder."""
    variables = {"RAY_JOB_STOP_WAIT_TIME_S": str(KILL_S)}
    sent: dict[str, Any] = {"env_vars": variables}
    if wheels:
        sent["py_modules"] = [str(wheel.resolve()) for wheel in wheels]
    if folder is not None:
        sent |= {"working_dir": str(folder.resolve()), "excludes": list(SECRETS)}
        if (folder / "src" / "closelook").is_dir():  # a clone, whose code the job runs
            variables["PYTHONPATH"] = "src"
    with tempfile.TemporaryDirectory() as alone:
        if folder is None and config is not None and Path(config).is_file():
            shutil.copy(config, alone)
            sent["working_dir"] = alone
        yield sent


def follow(client: JobSubmissionClient, job: str) -> int:
    """Print the job's log until it ends. Returns its exit code; 1 if a signal ended it."""

    async def print_log() -> None:
        async for text in client.tail_job_logs(job):
            print(text, end="", flush=True)

    asyncio.run(print_log())
    while not (state := client.get_job_info(job)).status.is_terminal():
        time.sleep(POLL_S)
    return 0 if state.status == "SUCCEEDED" else max(1, state.driver_exit_code or 1)
