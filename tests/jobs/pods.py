"""Containers on one machine without a container runtime: its files under an overlay, and namespaces of their own.

All pods of a test share a network, in which only they listen, and process ids, so that `ray stop` sees no other Ray.
What a manifest says of a container is done as it says: command, arguments, working directory, user, groups,
environment, and mounts at their very paths.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.jobs.small import REPOSITORY
from tests.patience import PATIENCE_S, wait_for

USER = 1000
HOME = "/home/closelook"
BIN = Path(sys.executable).parent
#: Run as root in the namespaces: the overlay's root becomes the root of all pods.
_SETUP = """
ip link set lo up
mount -t tmpfs tmpfs {folder}
mkdir {folder}/upper {folder}/work {folder}/root
mount -t overlay overlay -o lowerdir=/,upperdir={folder}/upper,workdir={folder}/work {folder}/root
for each in /dev /sys {repository}; do mkdir -p {folder}/root$each; mount --rbind $each {folder}/root$each; done
mount -t proc proc {folder}/root/proc
mount -t tmpfs tmpfs {folder}/root/tmp
mount -t tmpfs tmpfs {folder}/root/dev/shm
chmod a+x {folder}/root/root
mkdir -p {folder}/root{home} {folder}/root/opt/huggingface/hub
ln -sfn {repository} {folder}/root/app
chown {user}:{user} {folder}/root{home}
for each in closelook python ray; do ln -sfn {bin}/$each {folder}/root/usr/local/bin/$each; done
printf '127.0.0.1 localhost {hosts}\\n' > {folder}/root/etc/hosts
echo ready
exec sleep infinity
"""


@dataclass(frozen=True)
class Container:
    """A command that was started, and the file of what it prints."""

    process: subprocess.Popen[bytes]
    log: Path

    def ended(self) -> tuple[int, str]:
        """(exit code, what it printed) once it has ended; fails where it does not end."""
        try:
            return self.process.wait(PATIENCE_S), self.log.read_text()
        except subprocess.TimeoutExpired:
            pytest.fail(f"it has not ended after {PATIENCE_S:.0f} s:\n{self.log.read_text()}")

    def says(self, text: str) -> None:
        """Wait until it has printed `text`. Fails where it ends before."""
        wait_for(lambda: text in self.log.read_text() or self.process.poll() is not None, self.log.read_text)
        assert text in self.log.read_text(), self.log.read_text()


class Pods:
    """Runs containers; `hosts` are names under which their services reach each other."""

    def __init__(self, folder: Path, hosts: Sequence[str]) -> None:
        """Skips the test where namespaces or overlays are not to be had."""
        if os.geteuid():
            pytest.skip("pods need root")
        self._folder, self._volumes = folder, folder.with_name("volumes")
        folder.mkdir()
        self._volumes.mkdir(mode=0o755)
        setup = _SETUP.format(
            folder=folder, repository=REPOSITORY, home=HOME, user=USER, bin=BIN, hosts=" ".join(hosts)
        )
        command = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "sh", "-euc", setup]
        self._holder = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if self._holder.stdout.readline() != "ready\n":
            pytest.skip(f"no pods can be made here: {self._holder.communicate()[1].strip()}")
        children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children").read_text().split()
        self._inside = ["nsenter", f"--target={children[0]}", "--mount", "--net", "--pid"]
        self._started: list[Container] = []

    def mount(self, name: str, path: str, group: int) -> None:
        """Mount a volume as Kubernetes does for a pod with this `fsGroup`."""
        volume = self._volumes / name
        if not volume.exists():
            volume.mkdir()
            os.chown(volume, 0, group)
            volume.chmod(0o2775)
        target = f"{self._folder}/root{path}"
        self._as_root(f"mkdir -p {target} && mountpoint -q {target} || mount --bind {volume} {target}")

    def write(self, path: str, text: str) -> None:
        """A file of the image."""
        target = f"{self._folder}/root{path}"
        self._as_root(f"mkdir -p {os.path.dirname(target)} && printf %s {shlex.quote(text)} > {target}")

    def _as_root(self, script: str) -> None:
        subprocess.run([*self._inside, "sh", "-euc", script], check=True)

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        user: Mapping[str, int | bool],
        folder: str = "/",
    ) -> Container:
        """Start a container's command as `user`, a pod's securityContext, says."""
        groups = f"--groups={user['fsGroup']}" if "fsGroup" in user else "--clear-groups"
        ids = (f"--reuid={user['runAsUser']}", f"--regid={user['runAsGroup']}", groups)
        variables = {"PATH": f"{BIN}:/usr/local/bin:/usr/bin:/bin", "HOME": HOME, **environment}
        named = [f"{name}={value}" for name, value in variables.items()]
        inner = f"cd {folder} && exec {shlex.join(['setpriv', *ids, 'env', '-i', *named, *command])}"
        enter = [*self._inside, "chroot", f"{self._folder}/root", "sh", "-c", inner]
        log = self._folder.with_name(f"log-{len(self._started)}")
        with log.open("w") as file:
            process = subprocess.Popen(enter, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)
        self._started.append(Container(process, log))
        return self._started[-1]

    def close(self) -> None:
        """End every process of every pod."""
        self._holder.kill()
        self._holder.communicate()
        for container in self._started:
            container.process.wait()
