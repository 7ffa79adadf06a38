"""A disk that is really full while shards are written: a small file system of its own, as large as a few shards.

Its runs do without Ray, which plays no part in it.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

from closelook.jobs.store import TEMPORARY, Store
from tests.jobs.forked import Forked
from tests.jobs.small import config_of, ended, prepared, relevance_of, rows_of

ROWS = rows_of(24)
PAGE = 4096  # bytes: what a tmpfs gives out at a time


class Disk:
    """1 MiB at `folder`, which only processes in the name spaces of `holder` see, where it is mounted."""

    def __init__(self, folder: Path) -> None:
        """Skips the test where a mount is not possible."""
        folder.mkdir()
        mount = f"mount -t tmpfs -o size={256 * PAGE} tmpfs {folder} && echo mounted && exec cat"
        command = ["unshare", "--map-root-user", "--mount", "sh", "-c", mount]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.holder = subprocess.Popen(command, text=True, **pipes)
        if self.holder.stdout.readline() != "mounted\n":
            pytest.skip(f"no small file system can be mounted here: {self.holder.communicate()[1].strip()}")
        self.folder = folder
        self._inside = ("nsenter", f"--target={self.holder.pid}", "--user", "--mount", "--preserve-credentials")

    def run(self, *command: str) -> str:
        return subprocess.run([*self._inside, *command], check=True, capture_output=True, text=True).stdout

    def free_pages(self) -> int:
        return int(self.run("stat", "--file-system", "--format=%f", str(self.folder)))

    def fill(self, leave: int) -> None:
        """All but `leave` pages."""
        size = (self.free_pages() - leave) * PAGE
        self.run("dd", "if=/dev/zero", f"of={self.folder}/ballast", f"bs={size}", "count=1", "status=none")
        assert self.free_pages() == leave

    def copy(self, to: Path) -> Path:
        """Copy the disk to a folder that every process sees."""
        self.run("cp", "-r", str(self.folder), str(to))
        return to

    def close(self) -> None:
        self.holder.communicate()


@pytest.fixture
def disk(namespaces, tmp_path):
    mounted = Disk(tmp_path / "disk")
    yield mounted
    mounted.close()


def test_a_run_on_a_full_disk_says_so_in_a_line_and_completes_when_there_is_space(disk, expected, tmp_path, model):
    """First nothing can be written, then a few shards, then all."""
    shutil.copytree(prepared(config_of(tmp_path / "views", model), ROWS).root, tmp_path / "root")
    disk.run("cp", "-r", str(tmp_path / "root"), f"{disk.folder}/root")
    config = config_of(disk.folder / "root", model)
    (tmp_path / "small.yaml").write_text(config.model_dump_json())
    arguments = ("attribute", "--config", str(tmp_path / "small.yaml"))

    for pages in (0, 12):
        disk.fill(leave=pages)
        code, _, err = ended(Forked(*arguments, inside=disk.holder.pid))
        assert code == 1
        lines = [line for line in err.strip().splitlines() if not line.startswith("attribute: ")]  # those are progress
        assert len(lines) == 1, err
        assert f"no space left under {config.root}: free some and run again" in lines[0]
        full = disk.copy(tmp_path / f"full-{pages}") / "root"
        shards = Store(str(full)).files("relevance", recursive=True)
        assert len(shards) < 3 * 3, "units and cells"
        for shard in shards:
            assert (full / shard).read_bytes().endswith(b"PAR1"), "a shard that can be seen is whole"
        assert not [path for path in full.rglob(f"{TEMPORARY}*") if path.is_file()]
        disk.run("rm", f"{disk.folder}/ballast")

    code, out, err = ended(Forked(*arguments, inside=disk.holder.pid))
    assert code == 0, err
    assert "attribute: 3 computed, 0 up to date" in out
    completed = config.model_copy(update={"root": str(disk.copy(tmp_path / "completed") / "root")})
    assert relevance_of(completed, Store(completed.root)) == expected
