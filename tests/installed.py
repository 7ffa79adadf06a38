"""The wheel of the working tree, and an environment that sees it and the packages it needs, but not the clone.

Those packages are the tests' own, seen through a .pth; closelook itself is not among them.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import torch

from tests.jobs.small import REPOSITORY

ROOMS = ("alti", "evaluation", "jobs", "lrp_core")
_OFFLINE = ("--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check")


def build_wheel(folder: Path) -> Path:
    """The wheel made of the source distribution, which is made of a copy: building leaves traces."""
    source = folder / "source"
    for name in (*ROOMS, "src"):
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(REPOSITORY / name, source / name, symlinks=True, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(REPOSITORY / name, source)
    make = "import sys; from setuptools.build_meta import build_sdist; print(build_sdist(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", make, str(folder)], check=True, cwd=source, stdout=subprocess.DEVNULL)
    (archive,) = folder.glob("closelook-*.tar.gz")
    _pip("wheel", *_OFFLINE, "--wheel-dir", folder, archive)
    (built,) = folder.glob("closelook-*.whl")
    return built


def make_environment(folder: Path, wheel: Path) -> dict[str, str]:
    """An environment in `folder`; returns the variables with which a process is in it."""
    venv.create(folder, with_pip=False)
    [site] = folder.glob("lib/python*/site-packages")
    folders = [
        sysconfig.get_path("purelib"),
        str(Path(torch.__file__).parents[1]),
    ]  # the tests' may see another's torch
    (site / "dependencies.pth").write_text("".join(f"{path}\n" for path in dict.fromkeys(folders)))
    _pip("install", *_OFFLINE, wheel, python=folder / "bin" / "python")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "PYTHON"))}
    return inherited | {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}


def _pip(*arguments: object, python: object = sys.executable) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--python", python, *map(str, arguments)], check=True)
