"""`closelook submit`: sends a command to a Ray cluster as a job, follows it, and exits with its exit code.

Submitting the same command again, such as by a CronJob whose pod was lost, follows the job that is running already. The
exit code tells whether another try may help: 1 for a store, hub or node that failed, 2 for a wrong config or model.
`ray job submit` exits with 1 in either case.
"""

from __future__ import annotations

import math
import os
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from closelook.jobs.commands.options import RUNS, RunOptions, WaitingOptions, command
from closelook.jobs.stages.record import STAGES
from closelook.lrp_core.records.types import UserError
from closelook.terminal import complain, say

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
Seconds = Annotated[float | None, typer.Option("--deadline", metavar="SECONDS", help="Stop the job after this time.")]

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


@command(RUNS)
def submit(
    run: RunOptions,
    waiting: WaitingOptions,
    stage: Stage = "run",
    address: Address = None,
    working_dir: Folder = None,
    wheel: Wheels = None,
    deadline: Seconds = None,
) -> None:
    """Run a command as a job of a Ray cluster, follow it, and exit with its exit code.

    If a job with this command line is running already, that job is followed. SIGTERM and the deadline stop the job; the
    exit code is then 143 or 124. Ctrl-C only ends following.
    """
    if stage not in ("run", *STAGES):
        raise UserError(f"no stage {stage!r}: run, {', '.join(STAGES)}")
    if address is None or not address.startswith(("http://", "https://")):
        raise UserError("give the address of the cluster's dashboard, as --address or RAY_ADDRESS: http://HEAD:8265")
    request = Request(stage, run.config, run.root, tuple(run.set or ()), waiting.wait, working_dir, tuple(wheel or ()))

    from closelook.jobs.cluster.submission import Cluster, Deadline

    until, entrypoint = Deadline(math.inf if deadline is None else time.monotonic() + deadline), request.entrypoint()
    with until.heeding(), request.environment() as environment:
        if working_dir is not None:
            files, size = sent(working_dir)
            say(f"{files} files of {working_dir} are sent, {size} bytes; not keys, nor what .gitignore names")
        cluster = Cluster(address)
        job, ran_before = cluster.job_of(entrypoint, environment)
        say(f"job {job} {'runs already' if ran_before else 'was submitted'}")
        try:
            code = cluster.follow(job, until)
        except KeyboardInterrupt:
            complain("the job goes on: the same command follows it, `closelook stop` ends it")
            raise typer.Exit(130) from None
    raise typer.Exit(code)


@dataclass(frozen=True)
class Request:
    """A command to run as a job, and the files to send with it."""

    command: str
    config: str | None
    root: str | None
    overrides: Sequence[str]
    wait_s: float
    folder: Path | None
    wheels: Sequence[Path]

    def owned_root(self) -> str:
        """The root of the run that the command starts.

        Raises UserError if the configuration cannot be read, or names no root.
        """
        from closelook.jobs.config.file import default_config, read
        from closelook.jobs.store import Store

        source = self.config or default_config(self.overrides)
        root = read(source, None, self.overrides).get("root") if self.root is None else self.root
        if not isinstance(root, str):
            raise UserError("the config names no root: add --root with the folder or URL of all results")
        return Store(root).root

    def entrypoint(self) -> str:
        """The command line of the job. Raises UserError as `owned_root`."""
        words = ["python", "-m", "closelook", self.command, "--root", self.owned_root()]
        if self.config is not None:
            words += ["--config", self._config_there()]
        for override in self.overrides:
            words += ["--set", override]
        if self.wait_s:
            words += ["--wait", f"{self.wait_s:g}"]
        return shlex.join(words)

    def _config_there(self) -> str:
        """The config as the job names it: a shipped name, or its path in the submitted folder.

        Raises UserError for a file outside of that folder.
        """
        assert self.config is not None
        file = Path(self.config)
        if not file.is_file():
            return self.config
        if self.folder is None:
            return file.name
        try:
            return str(file.resolve().relative_to(self.folder.resolve()))
        except ValueError:
            raise UserError(
                f"the config {file} is outside of --working-dir {self.folder}, and nothing else is sent: move it there"
            ) from None

    @contextmanager
    def environment(self) -> Iterator[dict[str, Any]]:
        """Ray's runtime environment of the job: its wheels and folder; a config alone is sent in a temporary folder."""
        made: dict[str, Any] = {}
        if self.wheels:
            made["py_modules"] = [str(wheel.resolve()) for wheel in self.wheels]
        if self.folder is not None:
            made |= {"working_dir": str(self.folder.resolve()), "excludes": list(SECRETS)}
            if (self.folder / "src" / "closelook").is_dir():  # a clone, whose code the job runs
                made["env_vars"] = {"PYTHONPATH": "src"}
        with tempfile.TemporaryDirectory() as folder:
            if self.folder is None and self.config is not None and os.path.isfile(self.config):
                shutil.copy(self.config, folder)
                made["working_dir"] = folder
            yield made


def sent(folder: Path) -> tuple[int, int]:
    """(number of files, bytes) that Ray sends of a working directory without SECRETS.

    Files that the ignore files of the folder name are not counted either.
    """
    from ray._private.runtime_env.packaging import _dir_travel, _get_excludes

    root, sizes = folder.resolve(), []

    def count(path: Path) -> None:
        if path.is_file():
            sizes.append(path.stat().st_size)

    _dir_travel(root, [_get_excludes(root, list(SECRETS))], count, include_gitignore=True)
    return len(sizes), sum(sizes)
