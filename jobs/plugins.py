"""Records that installed packages bring, through entry points: methods, tasks, families, metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from lrp_core.types import UserError


def load(group: str, kind: type, add: Callable[[Any, str], object]) -> None:
    """Hands every record of the entry points `group` to `add(record, package)`, packages by name.

    An entry point names a record of the class `kind`, or an iterable of them. Raises UserError, naming the package, for
    one that cannot be loaded or holds something else, and what `add` raises.
    """
    for entry in sorted(entry_points(group=group), key=lambda entry: (_package(entry), entry.name)):
        for record in _records(entry, kind):
            add(record, _package(entry))


def _records(entry: EntryPoint, kind: type) -> list[Any]:
    named = f"{_package(entry)} brings {entry.value!r} as {entry.group}"
    try:
        found = entry.load()
    except Exception as error:  # whatever the package's own code raises when it is imported
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"{named}, which cannot be imported ({reason}): mend or uninstall it") from error
    records = list(found) if isinstance(found, Iterable) and not isinstance(found, kind) else [found]
    for record in records:
        if not isinstance(record, kind):
            raise UserError(f"{named}, which holds {record!r:.80} and no {kind.__name__}: mend or uninstall it")
    return records


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else entry.module
