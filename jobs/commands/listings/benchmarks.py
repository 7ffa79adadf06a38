"""Finds the benchmarks of the software, which only a clone of the repository has."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

from lrp_core.records.types import UserError

CLONE = Path(__file__).parents[3]
NEEDS_CLONE = "benchmarks are not installed with the package: run them in a clone of the repository"


def names() -> tuple[str, ...]:
    """The names of all benchmarks; () if this is no clone."""
    package = _benchmarks()
    return package.BENCHES if package else ()


def benchmark(name: str) -> ModuleType:
    """The module of the benchmark `name`. Raises UserError for an empty or unknown name, and if this is no clone."""
    from jobs.config.file import nearest

    known = names()
    if not known:
        raise UserError(NEEDS_CLONE)
    if not name:
        raise UserError(f"no benchmark is named: give one of {', '.join(known)}")
    if name not in known:
        raise UserError(f"no benchmark {name!r}{nearest(name, known)}")
    return import_module(f"benchmarks.{name}")


def _benchmarks() -> ModuleType | None:
    """The package `benchmarks`; None if this is no clone. Puts the clone on `sys.path`, to import it."""
    if not (CLONE / "pyproject.toml").exists() or not (CLONE / "benchmarks").is_dir():
        return None
    if str(CLONE) not in sys.path:
        sys.path.insert(0, str(CLONE))
    return import_module("benchmarks")
