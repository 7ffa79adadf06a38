"""Benchmarks of the software, which a clone of the repository has beside the package."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

from lrp_core.records.types import UserError

CLONE = Path(__file__).parents[3]
NEEDS_CLONE = "benchmarks need a clone of the repository: the installed package has none"


def names() -> tuple[str, ...]:
    """The names of the benchmarks; none without a clone."""
    package = _benchmarks()
    return package.BENCHES if package else ()


def benchmark(name: str) -> ModuleType:
    """The module of a benchmark. Raises UserError without a clone, and for a name that is empty or unknown."""
    from jobs.config.file import nearest

    known = names()
    if not known:
        raise UserError(NEEDS_CLONE)
    if not name:
        raise UserError(f"say which benchmark: {', '.join(known)}")
    if name not in known:
        raise UserError(f"no benchmark {name!r}{nearest(name, known)}")
    return import_module(f"benchmarks.{name}")


def _benchmarks() -> ModuleType | None:
    """The package of the clone, whose folder is put on the path for processes that a benchmark starts."""
    if not (CLONE / "pyproject.toml").exists() or not (CLONE / "benchmarks").is_dir():
        return None
    if str(CLONE) not in sys.path:
        sys.path.insert(0, str(CLONE))
    return import_module("benchmarks")
