"""Names that are imported when they are first used, so that what is light does not wait for torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of `package` (PEP 562): `homes` gives the module that defines each name."""

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes[name]), name)

    def names() -> list[str]:
        loaded = vars(import_module(package))
        return sorted({*loaded, *homes})

    return get, names


def named(path: str) -> Any:
    """The object that "module:name" names. Raises ImportError or AttributeError where it is not there."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)
