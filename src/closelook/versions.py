"""Versions of the packages that decide numbers, as manifests and benchmarks record them."""

from __future__ import annotations

import platform
import re
from functools import cache
from importlib.metadata import PackageNotFoundError, requires, version

PACKAGES = ("closelook", "torch", "transformers", "accelerate", "ray", "pyarrow", "numpy")


def versions(*more: str) -> dict[str, str]:
    """The versions of Python, PACKAGES and `more` by name; packages that are not installed are left out."""
    known = {package: _version(package) for package in (*PACKAGES, *more)}
    installed = {package: number for package, number in known.items() if number is not None}
    return {"python": platform.python_version(), **installed}


@cache
def _version(package: str) -> str | None:
    """The installed version of a package; None if it is not installed. Cached, since every manifest needs it."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def extra_of(module: str) -> str | None:
    """The extra of closelook that installs a module, as in `closelook[run]`; None if there is none."""
    try:
        asked = requires("closelook") or []
    except PackageNotFoundError:
        return None
    for line in asked:
        match = re.match(r"([\w-]+).*extra == ['\"]([\w-]+)['\"]", line)
        if match and match[1] == module and match[2] != "dev":
            return match[2]
    return None
