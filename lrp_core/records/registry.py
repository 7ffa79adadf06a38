"""Tables of records by name, to which other packages may add: methods, tasks, families, sources, metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol, TypeVar

from lrp_core.records.types import UserError


class Named(Protocol):
    """An object with a name."""

    @property
    def name(self) -> str: ...


R = TypeVar("R", bound=Named)
OURS = "closelook"  # the owner of records that no other package adds


class Registry(Mapping[str, R]):
    """Records of one kind by name, in the order in which they were added."""

    def __init__(self, kind: str, *records: R) -> None:
        """`kind` is what an error calls a record, as in "method"."""
        self.kind = kind
        self._records: dict[str, R] = {}
        self._owners: dict[str, str] = {}
        for record in records:
            self.register(record)

    def register(self, record: R, by: str = OURS) -> R:
        """Add a record on behalf of the package or module `by`, and return it. Adding the same object again is allowed.

        Raises UserError, naming both packages, if another record has its name.
        """
        known = self._records.get(record.name)
        if known is not None and known is not record:
            raise UserError(
                f"{by} and {self._owners[record.name]} both bring a {self.kind} named {record.name!r}: "
                "rename one of them or uninstall its package"
            )
        if known is None:
            self._records[record.name] = record
            self._owners[record.name] = by
        return record

    def owner(self, name: str) -> str:
        """The package or module that added the record `name`. Raises KeyError for an unknown name."""
        return self._owners[name]

    def __getitem__(self, name: str) -> R:
        return self._records[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __repr__(self) -> str:
        return f"<{len(self)} {self.kind}s: {', '.join(self)}>"

    def __len__(self) -> int:
        return len(self._records)
