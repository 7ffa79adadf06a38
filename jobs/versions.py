"""Versions of everything that computes, as manifests and benchmarks record them."""

from __future__ import annotations

import platform
import re
from importlib.metadata import PackageNotFoundError, requires, version

PACKAGES = ("closelook", "torch", "transformers", "accelerate", "ray", "pyarrow", "numpy")


def versions(*more: str) -> dict[str, str]:
    """The versions of Python, PACKAGES and `more`, but for those that are not installed."""
    named = {"python": platform.python_version()}
    for package in (*PACKAGES, *more):
        try:
            named[package] = version(package)
        except PackageNotFoundError:
            continue
    return named


def extra_of(module: str) -> str | None:
    """The extra of closelook that brings a module; None where none does, or closelook is not installed."""
    try:
        asked = requires("closelook") or []
    except PackageNotFoundError:
        return None
    for line in asked:
        found = re.match(r"([\w-]+).*extra == ['\"]([\w-]+)['\"]", line)
        if found and found[1] == module and found[2] != "dev":
            return found[2]
    return None
