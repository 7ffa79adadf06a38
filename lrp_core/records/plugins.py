"""Methods, tasks, families and metrics that other installed packages add through entry points."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic

from lrp_core.records.registry import OURS, R, Registry
from lrp_core.records.types import UserError


class Extended(Mapping[str, R], Generic[R]):
    """A table of our records and those of other packages, which are imported at the first look-up in a process.

    Every look-up raises UserError, naming the package, as long as a package's records cannot be imported.
    """

    def __init__(self, table: Registry[R], group: str, kind: type[R]) -> None:
        """Extend `table` by the records, of class `kind`, that the entry points of `group` name."""
        self._table, self._group, self._kind = table, group, kind

    @cached_property
    def _all(self) -> Registry[R]:
        """The table, after the records of all packages were added to it."""
        load(self._group, self._kind, self._table.register)
        return self._table

    def register(self, record: R, by: str = OURS) -> R:
        """As :meth:`Registry.register`."""
        return self._table.register(record, by)

    def owner(self, name: str) -> str:
        """The package that adds the record `name`. Raises KeyError for an unknown name."""
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
    """Call `add(record, package)` for every record of the entry points of `group`, in the order of package names.

    An entry point names a record of class `kind`, or an iterable of such records. Raises UserError, naming the package,
    if an entry point cannot be imported or names anything else, and whatever `add` raises.
    """
    for entry in sorted(entry_points(group=group), key=lambda entry: (_package(entry), entry.name)):
        for record in _records(entry, kind):
            add(record, _package(entry))


def _records(entry: EntryPoint, kind: type) -> list[Any]:
    """The records of class `kind` that an entry point names.

    Raises UserError, naming the package, if it cannot be imported or names anything else.
    """
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
    """The name of the installed package that declares an entry point, or of its module if the package is unknown."""
    return entry.dist.name if entry.dist is not None else entry.module
