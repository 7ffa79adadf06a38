#!/usr/bin/env python3
"""Tests without Docker that jobs/deploy/Dockerfile gives an image that works. Needs root, debootstrap and iproute2.

    .ci/image.py FOLDER [--share PATH ...] [--build-arg NAME=VALUE ...]

A minimal Debian with Python is installed into FOLDER, in place of the image's base, and the Dockerfile's instructions
are carried out in it one by one. Then `closelook run --config smoke` runs there as the image's user, without a network
except loopback, and without anything of this machine except its kernel. If pip installs packages from folders of this
machine, name them by `--share`: they can be read at the same paths inside. The exit code is 0 if every step and the run
succeed.
"""

import argparse
import fnmatch
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
DOCKERFILE = REPOSITORY / "jobs" / "deploy" / "Dockerfile"
BASE = re.compile(r"python:(?P<version>3\.\d+)(\.\d+)?-slim-(?P<debian>\w+)")
PATHS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: Files of the machine that are visible inside: by them, hosts and packages are found.
SEEN = ("/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf", "/etc/ssl/certs")
RUN = 'cd "$(mktemp -d)" && closelook run --config smoke && test -s runs/smoke/report/index.html'


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """The keyword and the argument of each instruction, without comments and with continued lines joined."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        keyword, _, argument = line.strip().partition(" ")
        if keyword:
            yield keyword.upper(), argument.strip()


def pairs(argument: str) -> dict[str, str]:
    """The names and values of an argument of ARG or ENV, such as `NAME=VALUE NAME="VALUE"`."""
    return dict(pair.partition("=")[::2] for pair in shlex.split(argument))


def ignored(path: str) -> bool:
    """True if .dockerignore excludes this path of the repository."""
    lines = (REPOSITORY / ".dockerignore").read_text(encoding="utf-8").splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    anywhere = [pattern.removeprefix("**/") for pattern in patterns if pattern.startswith("**/")]
    name = path.rpartition("/")[2]
    return any(fnmatch.fnmatch(path, rule) for rule in patterns) or any(
        fnmatch.fnmatch(name, rule) for rule in anywhere
    )


@dataclass
class Image:
    """The image as it is built: the folder of its root, and what the instructions have set so far."""

    root: Path
    arguments: dict[str, str]  # build arguments
    shared: Sequence[str] = ()
    folder: str = "/"
    user: str = "0"
    variables: dict[str, str] = field(default_factory=dict)

    def follow(self, keyword: str, argument: str) -> None:
        """Carries out one instruction. Exits if it fails, or if this script does not know its keyword."""
        match keyword:
            case "FROM":
                self._unpack(argument)
            case "ARG":
                self.arguments = pairs(argument) | self.arguments
            case "ENV":
                self.variables |= pairs(argument)
            case "WORKDIR":
                self.folder = argument
                self._inside(argument).mkdir(parents=True, exist_ok=True)
            case "COPY":
                self._copy(*argument.split())
            case "RUN":
                self.run(argument)
            case "USER":
                self.user = argument
            case "CMD":
                self.run(shlex.join(json.loads(argument)))
            case _:
                sys.exit(f"{DOCKERFILE.name}: .ci/image.py does not know the instruction {keyword}: add it to `follow`")

    def run(self, command: str, network: bool = True) -> None:
        """Runs a command in the image's shell, as its user, in its folder and in separate namespaces.

        Exits if the command fails.
        """
        mounts = [f"mount --rbind /dev {self._inside('/dev')}", f"mount -t tmpfs tmpfs {self._inside('/dev/shm')}"]
        mounts.append(f"mount -t proc proc {self._inside('/proc')}")
        for path in [*filter(os.path.exists, SEEN), *self.shared] if network else ():
            inside = self._inside(path)
            if Path(path).is_dir():
                inside.mkdir(parents=True, exist_ok=True)
            else:
                inside.parent.mkdir(parents=True, exist_ok=True)
                inside.touch()
            mounts.append(f"mount --rbind -o ro {shlex.quote(path)} {inside}")
        home = "/root" if self.user == "0" else f'"$(chroot {self.root} getent passwd {self.user} | cut -d: -f6)"'
        named = [f"{name}={value}" for name, value in (self.arguments | self.variables).items()]
        inner = f"cd {shlex.quote(self.folder)} && {command}"
        enter = (
            f"exec chroot --userspec={self.user}:{self.user} --groups= {self.root} env -i HOME={home}"
            f" {shlex.join([f'PATH={PATHS}', *named])} /bin/sh -c {shlex.quote(inner)}"
        )
        alone = [] if network else ["--net"]
        loopback = [] if network else ["ip link set lo up"]
        script = "\n".join([*mounts, *loopback, enter])
        unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child", *alone]
        if subprocess.run([*unshare, "sh", "-euc", script], check=False).returncode:
            sys.exit(f"failed: {command}")

    def _unpack(self, base: str) -> None:
        """Installs the Debian of the base image, and its version of Python as an environment in /usr/local."""
        of_base = BASE.fullmatch(base)
        if of_base is None:
            sys.exit(f"{DOCKERFILE.name}: the base {base} is none of the form python:3.N-slim-DEBIAN")
        python = f"python{of_base['version']}"
        command = ["debootstrap", "--variant=minbase", "--include=ca-certificates", of_base["debian"], str(self.root)]
        if subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode:
            sys.exit(f"failed: {shlex.join(command)}")
        self.run(f"apt-get update && apt-get install --yes --no-install-recommends {python} {python}-venv")
        self.run(f"{python} -m venv /usr/local")

    def _copy(self, source: str, target: str) -> None:
        """Copies a file or folder of the repository into the image, without paths that .dockerignore excludes."""

        def left_out(folder: str, names: list[str]) -> list[str]:
            return [name for name in names if ignored((Path(folder) / name).relative_to(REPOSITORY).as_posix())]

        if (REPOSITORY / source).is_file():
            shutil.copy(REPOSITORY / source, self._inside(target))
        else:
            shutil.copytree(REPOSITORY / source, self._inside(target), ignore=left_out, dirs_exist_ok=True)

    def _inside(self, path: str) -> Path:
        """The path on this machine of a path inside the image, which is absolute or relative to its folder."""
        return self.root / os.path.normpath(os.path.join(self.folder, path)).lstrip("/")


def main(arguments: Sequence[str] | None = None) -> None:
    """Builds the image's root and makes a run in it; exits with 1 if a step fails."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folder", type=Path, help="a new folder, for the image's root")
    options.add_argument(
        "--share", action="append", default=[], metavar="PATH", help="a folder of packages; can be repeated"
    )
    options.add_argument(
        "--build-arg", action="append", default=[], metavar="NAME=VALUE", help="as docker's; can be repeated"
    )
    chosen = options.parse_args(arguments)
    missing = [tool for tool in ("debootstrap", "unshare", "chroot", "ip") if shutil.which(tool) is None]
    if missing or os.geteuid() != 0:
        options.error(f"run this as root; missing tools: {', '.join(missing) or 'none'}")
    if chosen.folder.exists():
        options.error(f"{chosen.folder} exists: name a folder that does not exist")
    build_arguments = dict(pair.partition("=")[::2] for pair in chosen.build_arg)
    image = Image(chosen.folder.resolve(), build_arguments, chosen.share)
    for keyword, argument in instructions(DOCKERFILE.read_text(encoding="utf-8")):
        start = time.monotonic()
        image.follow(keyword, argument)
        print(f"{time.monotonic() - start:6.1f} s  {keyword} {argument[:80]}", flush=True)
    image.arguments = {}
    start = time.monotonic()
    image.run(RUN, network=False)
    print(f"{time.monotonic() - start:6.1f} s  a run without a network: {RUN}", flush=True)


if __name__ == "__main__":
    main()
