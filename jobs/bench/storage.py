"""Benchmark results as Parquet, ROOT/bench/NAME/DEVICE-TIME.parquet: one row for each number, of any benchmark.

They hold the same as the JSON that a benchmark prints, in the one schema of the store. Needs pyarrow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from closelook.evaluation.schema import BENCH
from closelook.jobs.store import Store, Written

RATIO = "ratio"  # the part and the unit of rows with a target
#: The columns of the schema, each with its names in the rows of benchmarks.
_COLUMNS = {
    "part": ("part", "what"),
    "model": ("model",),
    "method": ("method", "run", "way", "scoring", "of"),
    "task": ("task",),
    "dtype": ("dtype",),
    "length": ("length",),
}
_UNITS = {
    "per_s": "1/s",
    "ms": "ms",
    "s": "s",
    "seconds": "s",
    "h": "h",
    "hours": "h",
    "bytes": "bytes",
    "usd": "USD",
    "ratio": "ratio",
    "speedup": "ratio",
    "share": "ratio",
    "utilisation": "ratio",
}
_SUMMARY = ("median", "q1", "q3", "n")


def save(result: Mapping[str, Any], root: str) -> str:
    """Add the JSON `result` to the store at `root`, a path or URL. Returns where the file is. Raises StoreError."""
    store = Store(root)
    store.create()
    return store.url(write(result, store)[0])


def write(result: Mapping[str, Any], store: Store) -> tuple[str, Written]:
    """Add a file of results to the store. Returns its path there, and the file as manifests list it."""
    path = f"bench/{result['bench']}/{_slug(result['device'])}-{_slug(result['written'])}.parquet"
    table = as_table(result)
    return path, store.write_shard(path, table, table.schema)


def as_table(result: Mapping[str, Any]) -> pa.Table:
    """All numbers in the JSON `result`, with the time, command and versions as metadata of the schema."""
    known = {"written": result["written"], "command": result["command"], "versions": json.dumps(result["versions"])}
    metadata = {f"closelook.{name}": value for name, value in known.items()} | (BENCH.metadata or {})
    return pa.Table.from_pylist(numbers(result), schema=BENCH.with_metadata(metadata))


def measured_by(bench: str, store: Store) -> list[dict[str, Any]]:
    """The numbers of a benchmark that were measured into the store, as rows of the schema."""
    files = store.files(f"bench/{bench}")
    return store.read(files, BENCH).to_pylist() if files else []


def numbers(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All numbers in the JSON `result` as rows of the schema."""
    measured = [number for row in result["rows"] for number in _measurements(row)]
    measured += [_promise(name, ratio) for name, ratio in result["ratios"].items()]
    origin = {"bench": result["bench"], "device": result["device"]}
    return [origin | number for number in measured]


def _measurements(row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a row of the schema for each measured value in a benchmark's row."""
    facts = _named(row)
    unit = facts.pop("unit", None)
    measured: dict[str, Mapping[str, Any]] = {}
    if "median" in facts:  # a summary spread over the row
        measured["median"] = {name: facts.pop(name) for name in _SUMMARY}
    for name, value in list(facts.items()):
        if isinstance(value, Mapping):
            measured[name] = facts.pop(name)
        elif value is None:
            del facts[name]
        elif isinstance(value, float) or name.endswith("bytes"):
            measured[name] = {"median": facts.pop(name)}
    columns: dict[str, Any] = {}
    for column, names in _COLUMNS.items():
        present = [name for name in names if name in facts]
        columns[column] = facts.pop(present[0]) if present else None
    columns |= {"part": columns["part"] or "all", "details": json.dumps(facts)}
    for name, spread in measured.items():
        yield columns | _number(name, unit if name == "median" else _unit(name), spread)


def _promise(name: str, ratio: Mapping[str, Any]) -> dict[str, Any]:
    """The row of the schema for a ratio with its target."""
    facts = _named(ratio)
    subject = ratio.get("model") or ratio.get("geometry")
    columns = {"part": RATIO} | {column: facts.pop(column, None) for column in ("model", "target", "better")}
    spread = {"median": facts.pop("value")} | {key: facts.pop(key, None) for key in _SUMMARY[1:]}
    number = _number(name.removeprefix(f"{subject}: "), RATIO, spread)
    return {**columns, **number, "details": json.dumps(facts)}


def _named(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with `model` in place of `geometry`: random weights have the name that configs give them."""
    facts = dict(row)
    geometry = facts.pop("geometry", None)
    return facts if geometry is None else facts | {"model": f"random/{geometry}"}


def _number(measure: str, unit: str | None, spread: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of one number: its name, unit, value and quartiles."""
    quartiles = {name: spread.get(name) for name in _SUMMARY[1:]}
    return {"measure": measure, "unit": unit, "value": spread["median"], **quartiles}


def _unit(name: str) -> str | None:
    """The unit of a measure, from the end of its name, as bytes from `peak_bytes`; None if it has none."""
    return next((unit for end, unit in _UNITS.items() if f"_{name}".endswith(f"_{end}")), None)


def _slug(text: str) -> str:
    """The text with only letters, digits and dots, others as hyphens, for file names."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-")
