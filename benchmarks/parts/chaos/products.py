"""Products of a run under chaos, held against those of an undisturbed one: equal, named by the root, or false.

A batch that ended several workers is computed row by row, so its numbers are equal but for rounding.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from jobs.store import Store
from jobs.store.listings import sizes_in
from jobs.store.records import artifact_in

#: Products that are no function of the configuration: times, and memory beside them.
_OF_TIME = ("bench", "runtime")
_ROUNDING = 1e-4  # of the largest number of a column, or of a printed number
#: Tables and figures of the report that tell of them, by the beginnings of their names.
_TABLES_OF_TIME = ("largest_batches", "leaderboard", "memory", "runtime", "seconds_by_length")


@dataclass
class Comparison:
    """Files of an undisturbed run by how they are found in another root."""

    equal: int = 0
    rounded: list[str] = field(default_factory=list)  # numbers differ by rounding alone
    named: list[str] = field(default_factory=list)  # they differ, and the root's manifests say why
    lost: list[str] = field(default_factory=list)  # not there, or not complete
    false: list[str] = field(default_factory=list)  # they differ, and nothing says so

    @property
    def files(self) -> int:
        return self.equal + len(self.rounded) + len(self.named) + len(self.lost) + len(self.false)


def compared(undisturbed: Store, store: Store) -> Comparison:
    """Hold every Parquet file, and every CSV of the report, against that of the same path in the undisturbed root."""
    result = Comparison()
    wanted, there = _manifests(undisturbed), _manifests(store)
    incomplete = {name for name in wanted if there.get(name, {}).get("state") != "complete"}
    differing, owners = _differing(wanted, there), _owners(wanted)
    for path in _paths(undisturbed):
        owner = owners.get(path)
        if owner in incomplete or not store.exists(path):
            result.lost.append(path)
        elif store.read_bytes(path) == undisturbed.read_bytes(path):
            result.equal += 1
        elif equal_but_for_rounding(undisturbed.read_bytes(path), store.read_bytes(path), path):
            result.rounded.append(path)
        elif owner in differing:
            result.named.append(path)
        else:
            result.false.append(path)
    return result


def equal_but_for_rounding(wanted: bytes, found: bytes, path: str) -> bool:
    """True if two files of this path hold the same rows, with numbers that differ by less than `_ROUNDING`."""
    columns = _columns_of_csv if path.endswith(".csv") else _columns_of_parquet
    try:
        ours, theirs = columns(found), columns(wanted)
    except (pa.ArrowInvalid, OSError, ValueError):
        return False
    return ours.keys() == theirs.keys() and all(_near(ours[name], theirs[name]) for name in theirs)


def _columns_of_csv(data: bytes) -> dict[str, pa.Array]:
    """The cells of a table, each a column of its own: a number, or a text."""
    rows = csv.reader(io.StringIO(data.decode()))
    cells = {f"{row},{column}": cell for row, line in enumerate(rows) for column, cell in enumerate(line)}
    return {name: pa.array([_number(cell)]) for name, cell in cells.items()}


def _number(cell: str) -> float | str:
    try:
        return float(cell)
    except ValueError:
        return cell


def _columns_of_parquet(data: bytes) -> dict[str, pa.Array]:
    """The columns of a file, lists laid end to end beside their lengths."""
    columns: dict[str, pa.Array] = {}
    table = pq.read_table(pa.BufferReader(data))
    for name, column in zip(table.column_names, table.columns, strict=True):
        values = column.combine_chunks()
        while pa.types.is_list(values.type):
            columns[f"lengths of {name}, {len(columns)}"] = pc.list_value_length(values)
            values = values.flatten()
        columns[name] = values
    return columns


def _near(found: pa.Array, wanted: pa.Array) -> bool:
    if not pa.types.is_floating(wanted.type) or found.type != wanted.type or len(found) != len(wanted):
        return bool(found.equals(wanted))
    ours, theirs = (array.to_numpy(zero_copy_only=False).astype(np.float64) for array in (found, wanted))
    largest = np.abs(theirs[np.isfinite(theirs)]).max(initial=0)
    return np.allclose(ours, theirs, rtol=0, atol=_ROUNDING * largest, equal_nan=True)


def _paths(store: Store) -> Iterator[str]:
    """The files that the same configuration writes with the same bytes wherever it runs."""
    for path in store.files("", ".parquet", recursive=True):
        if not path.startswith(_OF_TIME):
            yield path
    for path in store.files("report", ".csv", recursive=True):
        if not path.rpartition("/")[2].startswith(_TABLES_OF_TIME):
            yield path


def _manifests(store: Store) -> dict[str, dict[str, Any]]:
    """The manifests of a root by name; one that cannot be read is empty."""
    found = {}
    for path in store.files("manifest", ".json"):
        name = path.removeprefix("manifest/").removesuffix(".json")
        try:
            found[name] = json.loads(store.read_bytes(path))
        except ValueError:
            found[name] = {}
    return found


def _differing(wanted: Mapping[str, Mapping[str, Any]], there: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """The artifacts with other rejects than in the undisturbed root, those that are made of them, and the report."""
    differing = {name for name in wanted if there.get(name, {}).get("rejects") != wanted[name].get("rejects")}
    while True:
        made = {name for name in there if differing.intersection(there[name].get("made_of", ()))}
        if made <= differing:
            return differing | ({"report"} if differing else set())
        differing |= made


def _owners(manifests: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The names of the manifests that list files, by path."""
    owners: dict[str, str] = {}
    for name, record in manifests.items():
        artifact = artifact_in(record)
        if artifact is not None:
            owners |= dict.fromkeys(sizes_in(artifact, record), name)
    return owners
