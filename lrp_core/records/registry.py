"""Tables of records by name, to which other packages may add: methods, tasks, families, sources, metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol, TypeVar

from closelook.lrp_core.records.types import UserError


class Named(Protocol):
    """An object with a name."""

    @property
    def name(self) -> str: ...


R = TypeVar("R", bound=Named)
OURS = "closelook"  # the owner of records that no other package adds


class Registry(Mapping[str, R]):
    """Records of one kind by name, in the order in which they were added.

    Those of other packages, if they may add any, are imported at the first look-up in a process. Every look-up raises
    UserError, naming the package, as long as a package's records cannot be imported.
    """

    def __init__(self, kind: str, *records: R, group: str = "", record_class: type = object) -> None:
        """`kind` is what an error calls a record, as in "method"."""
        self.kind, self._group, self._class = kind, group, record_class
        self._added: dict[str, R] = {}
        self._owners: dict[str, str] = {}
        for record in records:
            self.register(record)

    def register(self, record: R, by: str = OURS) -> R:
        """Add a record on behalf of the package or module `by`, and return it. Adding the same object again is allowed.

        Raises UserError, naming both packages, if another record has its name.
        """
        known = self._added.get(record.name)
        if known is not None and known is not record:
            raise UserError(
                f"{by} and {self._owners[record.name]} both bring a {self.kind} named {record.name!r}: "
                "rename one of them or uninstall its package"
            )
        if known is None:
            self._added[record.name] = record
            self._owners[record.name] = by
        return record

    @property
    def _records(self) -> dict[str, R]:
        """All records, after those of other packages were added."""
        if self._group:
            load(self._group, self._class, self.register)
            self._group = ""
        return self._added

    def owner(self, name: str) -> str:
        """The package or module that added the record `name`. Raises KeyError for an unknown name."""
        return self._owners[self._records[name].name]

    def __getitem__(self, name: str) -> R:
        return self._records[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __repr__(self) -> str:
        return f"<{len(self)} {self.kind}s: {', '.join(self)}>"

    def __len__(self) -> int:
        return len(self._records)


def load(group: str, kind: type, add: Callable[[Any, str], object]) -> None:
    """Call `add(record, package)` for every record of the entry points of `group`, in the order of package names.

    An entry point names a record of class `kind`, or an iterable of such records. Raises UserError, naming the package,
    if an entry point cannot be imported or names anything else, and whatever `add` raises.
    """
    for entry in sorted(entry_points(group=group), key=lambda entry: (_package(entry), entry.name)):
        for record in _records(entry, kind):
            add(record, _package(entry))


def _records(entry: EntryPoint, kind: type) -> list[Any]:
    """The records of class `kind` that an entry point names."""
    named = f"{_package(entry)} brings {entry.value!r} as {entry.group}"
    try:
        loaded = entry.load()
    except (Exception, SystemExit) as error:  # whatever the package's own code raises when it is imported
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
