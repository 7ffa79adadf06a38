"""Names that are imported when they are first used, so that what is light does not wait for torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of `package` (PEP 562), which import a name when it is first used.

    `homes` maps each name to the module that defines it. `__getattr__` raises AttributeError for other names.
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes[name]), name)

    def names() -> list[str]:
        loaded = vars(import_module(package))
        return sorted({*loaded, *homes})

    return get, names


def imported_object(path: str) -> Any:
    """Import and return the object at `path`, written "module:name". Raises ImportError or AttributeError if absent."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)
