"""Versions of everything that computes, as manifests and benchmarks record them."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

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
