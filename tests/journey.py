"""The project files whose functions run from `main()` to the first forward of a worker: `python -m tests.journey`.

It runs `closelook run` with the config `smoke` in a new root until a process other than the driver calls a torch
module, and prints how many files these are, over all processes, and which.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.patience import PATIENCE_S
from tests.traced.sitecustomize import FORWARD

ROOT = Path(__file__).parents[1]
HOOK = Path(__file__).with_name("traced")
PACKAGES = ("closelook",)


def journey(arguments: Sequence[str], root: Path, packages: Sequence[str], folder: Path) -> dict[str, set[str]]:
    """The files below `root` of which a function runs before a child process of `python ARGUMENTS` calls a module.

    Gives by file where its functions run: in the "driver", in a "worker". `folder` takes the records of all processes.
    Raises RuntimeError where the command ends without such a call.
    """
    paths = os.pathsep.join([str(HOOK), str(root / "src"), os.environ.get("PYTHONPATH", "")])
    settings = {"PYTHONPATH": paths, "TRACED_FOLDER": str(folder), "TRACED_PACKAGES": " ".join(packages)}
    command = [sys.executable, *arguments]
    with open(folder / "output.txt", "w+b") as output:
        process = subprocess.Popen(command, cwd=root, env=os.environ | settings, stdout=output, stderr=output)
        try:
            first = _first_forward(process, folder)
        finally:
            process.terminate()
            process.wait()
        if first is None:
            output.seek(0)
            raise RuntimeError(f"no worker called a module:\n{output.read().decode()}")
    files: dict[str, set[str]] = {}
    for pid, lines in _records(folder).items():
        for path, at in lines.items():
            if at <= first and path != FORWARD:
                side = "driver" if pid == process.pid else "worker"
                files.setdefault(str(Path(path).relative_to(root)), set()).add(side)
    return dict(sorted(files.items()))


def _first_forward(process: subprocess.Popen[bytes], folder: Path) -> float | None:
    """The time of the first forward in another process than the driver; None where it ends without one."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        ended = process.poll() is not None
        workers = (lines for pid, lines in _records(folder).items() if pid != process.pid)
        forwards = [lines[FORWARD] for lines in workers if FORWARD in lines]
        if forwards:
            return min(forwards)
        if ended:
            return None
        time.sleep(0.1)
    return None


def _records(folder: Path) -> Mapping[int, dict[str, float]]:
    """{process: {file: time of its first call}}."""
    records = {}
    for log in folder.glob("*.log"):
        lines = [line.split(" ", 1) for line in log.read_text(encoding="utf-8").splitlines()]
        records[int(log.stem)] = {path: float(at) for at, path in lines}
    return records


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as run:
        arguments = ("-m", "closelook", "run", "--config", "smoke", "--root", run)
        files = journey(arguments, ROOT, PACKAGES, Path(folder))
    counts = Counter(side for sides in files.values() for side in sides)
    print(
        f"{len(files)} project files from main() to the first forward of a worker, "
        f"{counts['driver']} in the driver, {counts['worker']} in workers:"
    )
    for file, sides in files.items():
        print(f"  {file}: {', '.join(sorted(sides))}")


if __name__ == "__main__":
    main()
