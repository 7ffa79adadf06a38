"""Records that installed packages bring, through entry points: methods, tasks, families, metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic

from lrp_core.records.registry import OURS, R, Registry
from lrp_core.records.types import UserError


class Extended(Mapping[str, R], Generic[R]):
    """A table with the entries of installed packages, which are loaded once for each process at the first look-up.

    That look raises UserError, naming the package, for one whose records cannot be had.
    """

    def __init__(self, table: Registry[R], group: str, kind: type[R]) -> None:
        """`group` is that of the entry points, which name records of the class `kind`."""
        self._table, self._group, self._kind = table, group, kind

    @cached_property
    def _all(self) -> Registry[R]:
        load(self._group, self._kind, self._table.register)
        return self._table

    def register(self, record: R, by: str = OURS) -> R:
        """As :meth:`Registry.register`."""
        return self._table.register(record, by)

    def owner(self, name: str) -> str:
        """The package that brings the record `name`. Raises KeyError."""
        return self._all.owner(name)

    def __getitem__(self, name: str) -> R:
        return self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def __repr__(self) -> str:
        return repr(self._all)


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
        loaded = entry.load()
    except Exception as error:  # whatever the package's own code raises when it is imported
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"{named}, which cannot be imported ({reason}): repair or uninstall it") from error
    records = list(loaded) if isinstance(loaded, Iterable) and not isinstance(loaded, kind) else [loaded]
    for record in records:
        if not isinstance(record, kind):
            raise UserError(f"{named}, which holds {record!r:.80} and no {kind.__name__}: repair or uninstall it")
    return records


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else entry.module
