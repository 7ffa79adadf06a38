"""Compares the files of a run under chaos with those of an undisturbed run.

A file may differ by more than rounding only if the manifests of the root say that rows are lacking. Rounding depends on
what shares a forward pass: where a file is made again, a method is computed without those whose files are whole. A
batch that ended several workers is even computed row by row, which may differ more; manifests count such batches.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from closelook.jobs.store import Store, artifact_in
from closelook.jobs.store.listings import sizes_in

#: Folders of products that differ from run to run, because they hold measured times and memory.
_OF_TIME = ("bench", "runtime")
#: How far numbers may differ, relative to the largest in their file: where other methods shared their forward pass, and
#: where rows were computed one by one.
ROUNDING, ROUNDING_BY_ROW = 1e-5, 1e-4
#: Beginnings of the names of the report's tables and figures that are made of them.
_TABLES_OF_TIME = ("largest_batches", "leaderboard", "memory", "runtime", "seconds_by_length")


@dataclass
class Comparison:
    """The files of an undisturbed run, grouped by how those of the same path in another root compare with them."""

    equal: int = 0
    rounded: dict[str, float] = field(default_factory=dict)  # differ by rounding; relative to the file's largest number
    named: list[str] = field(default_factory=list)  # differ, and the root's manifests say why
    lost: list[str] = field(default_factory=list)  # missing, or their artifact is not complete
    false: dict[str, float] = field(default_factory=dict)  # differ so (as `rounded`), and the root does not say why

    @property
    def files(self) -> int:
        return self.equal + len(self.rounded) + len(self.named) + len(self.lost) + len(self.false)


def compared(undisturbed: Store, store: Store) -> Comparison:
    """Compares every Parquet file and every CSV of the report with the file of the same path in `store`."""
    result = Comparison()
    expected_manifests = _manifests(undisturbed)
    manifests = _manifests(store)
    incomplete = {name for name in expected_manifests if manifests.get(name, {}).get("state") != "complete"}
    differing = _differing(expected_manifests, manifests)
    by_row = _by_row(manifests)
    owners = _owners(expected_manifests)
    for path in _paths(undisturbed):
        owner = owners.get(path)
        if owner in incomplete or not store.exists(path):
            result.lost.append(path)
            continue
        expected, content = undisturbed.read_bytes(path), store.read_bytes(path)
        if content == expected:
            result.equal += 1
            continue
        is_by_row = owner in by_row
        difference = rounding(expected, content, path, in_any_order=is_by_row)
        if difference <= (ROUNDING_BY_ROW if is_by_row else ROUNDING):
            result.rounded[path] = difference
        elif owner in differing:
            result.named.append(path)
        else:
            result.false[path] = difference
    return result


def rounding(expected: bytes, actual: bytes, path: str, in_any_order: bool = False) -> float:
    """The largest difference between floating point numbers of two files, divided by the largest number in `expected`.

    Infinite if anything else differs, or a file cannot be read. The ending of `path` tells the format of both. With
    `in_any_order`, rows of Parquet may have another order, which batches leave that were computed row by row.
    """
    columns = _columns_of_csv if path.endswith(".csv") else partial(_columns_of_parquet, sort=in_any_order)
    try:
        ours, theirs = columns(actual), columns(expected)
    except (pa.ArrowInvalid, OSError, ValueError):
        return math.inf
    if ours.keys() != theirs.keys():
        return math.inf
    difference = max(_difference(ours[name], theirs[name]) for name in theirs)
    if difference in (0, math.inf):
        return difference
    largest = max(_largest(column) for column in theirs.values())
    return difference / largest if largest else math.inf


def _columns_of_csv(data: bytes) -> dict[str, pa.Array]:
    """The cells of a table as numbers or texts, each cell as a column of its own."""
    rows = csv.reader(io.StringIO(data.decode()))
    cells = {f"{row},{column}": cell for row, line in enumerate(rows) for column, cell in enumerate(line)}
    return {name: pa.array([_number(cell)]) for name, cell in cells.items()}


def _number(cell: str) -> float | str:
    """The cell as a number if it is one, else as text."""
    try:
        return float(cell)
    except ValueError:
        return cell


def _columns_of_parquet(data: bytes, sort: bool) -> dict[str, pa.Array]:
    """The columns of a file. A column of lists becomes two: the joined elements, and the lengths of the lists.

    `sort` sorts the rows by the columns of text.
    """
    columns: dict[str, pa.Array] = {}
    table = pq.read_table(pa.BufferReader(data))
    names = [column.name for column in table.schema if pa.types.is_string(column.type)]
    if sort and names:
        table = table.sort_by([(name, "ascending") for name in names])
    for name, column in zip(table.column_names, table.columns, strict=True):
        values = column.combine_chunks()
        while pa.types.is_list(values.type):
            columns[f"lengths of {name}, {len(columns)}"] = pc.list_value_length(values)
            values = values.flatten()
        columns[name] = values
    return columns


def _difference(actual: pa.Array, expected: pa.Array) -> float:
    """The largest difference between floating point numbers of two columns; infinite if anything else differs."""
    if actual.equals(expected):
        return 0.0
    if not pa.types.is_floating(expected.type) or actual.type != expected.type or len(actual) != len(expected):
        return math.inf
    ours, theirs = _numbers(actual), _numbers(expected)
    is_finite = np.isfinite(theirs)
    if not np.array_equal(ours[~is_finite], theirs[~is_finite], equal_nan=True):
        return math.inf
    difference = np.abs(ours - theirs)[is_finite].max(initial=0)
    return math.inf if np.isnan(difference) else float(difference)


def _largest(column: pa.Array) -> float:
    """The largest absolute value of a column of floating point numbers; 0 for other columns."""
    if not pa.types.is_floating(column.type):
        return 0.0
    numbers = _numbers(column)
    return float(np.abs(numbers[np.isfinite(numbers)]).max(initial=0))


def _numbers(column: pa.Array) -> np.ndarray:
    return column.to_numpy(zero_copy_only=False).astype(np.float64)


def _paths(store: Store) -> Iterator[str]:
    """The paths of all files whose bytes depend only on the configuration."""
    for path in store.files("", ".parquet", recursive=True):
        if not path.startswith(_OF_TIME):
            yield path
    for path in store.files("report", ".csv", recursive=True):
        if not path.rpartition("/")[2].startswith(_TABLES_OF_TIME):
            yield path


def _manifests(store: Store) -> dict[str, dict[str, Any]]:
    """The manifests of a root by name; an empty one stands for a manifest that cannot be read."""
    manifests = {}
    for path in store.files("manifest", ".json"):
        name = path.removeprefix("manifest/").removesuffix(".json")
        try:
            manifests[name] = json.loads(store.read_bytes(path))
        except ValueError:
            manifests[name] = {}
    return manifests


def _differing(expected: Mapping[str, Mapping[str, Any]], manifests: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """The artifacts whose rejects differ from those in the undisturbed root, and all that is computed from these."""
    differing = [
        name for name, record in expected.items() if manifests.get(name, {}).get("rejects") != record.get("rejects")
    ]
    return _with_made(differing, manifests)


def _by_row(manifests: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """The artifacts with batches that were computed row by row, and all that is computed from these."""
    by_row = [name for name, record in manifests.items() if record.get("fallbacks", {}).get("batches_by_row")]
    return _with_made(by_row, manifests)


def _with_made(names: Iterable[str], manifests: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """These artifacts, those that are computed from them, directly or in turn, and the report if there are any."""
    reached = set(names)
    while True:
        made = {name for name in manifests if reached.intersection(manifests[name].get("made_of", ()))}
        if made <= reached:
            return reached | ({"report"} if reached else set())
        reached |= made


def _owners(manifests: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """For each file, the name of the manifest that lists it."""
    owners: dict[str, str] = {}
    for name, record in manifests.items():
        artifact = artifact_in(record)
        if artifact is not None:
            owners |= dict.fromkeys(sizes_in(artifact, record), name)
    return owners
