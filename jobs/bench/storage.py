"""Results of benchmarks as Parquet, `ROOT/bench/NAME/<device>-<time>.parquet`: one row a number, of any benchmark.

The JSON of a benchmark is what its command promises; this is the same in the store's one schema. Needs pyarrow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from evaluation.schema import BENCH
from jobs.store import Store

SHIPPED = Path(__file__).with_name("results")  # of machines that not everybody has
RATIO = "ratio"  # the part, and the unit
#: What benchmarks call the way of doing something that they measured.
_METHOD = ("method", "run", "way", "scoring", "of")
_PLACE = {"part": ("part", "what"), "model": ("model",), "method": _METHOD} | {
    column: (column,) for column in ("task", "dtype", "length")
}
_UNITS = {"per_s": "1/s", "ms": "ms", "s": "s", "seconds": "s", "h": "h", "hours": "h", "bytes": "bytes"}
_UNITS |= {"usd": "USD"} | dict.fromkeys(("ratio", "speedup", "share", "utilisation"), RATIO)
_SUMMARY = ("median", "q1", "q3", "n")


def save(result: Mapping[str, Any], root: str) -> str:
    """Add the JSON `result` to the store at `root`, a path or URL; where it is now. Raises StoreError."""
    store = Store(root)
    store.create()
    return store.url(write(result, store))


def write(result: Mapping[str, Any], store: Store) -> str:
    """Add a file, in one step; returns its path in the store."""
    known = {"written": result["written"], "command": result["command"], "versions": json.dumps(result["versions"])}
    metadata = {f"closelook.{name}": value for name, value in known.items()} | (BENCH.metadata or {})
    path = f"bench/{result['bench']}/{_slug(result['device'])}-{_slug(result['written'])}.parquet"
    store.write_shard(path, pa.Table.from_pylist(numbers(result), schema=BENCH), BENCH.with_metadata(metadata))
    return path


def measured_by(bench: str, store: Store) -> list[dict[str, Any]]:
    """The numbers of a benchmark as rows of the schema: those that are shipped, then those in the store."""
    measured: list[dict[str, Any]] = []
    for path in sorted(SHIPPED.glob(f"{bench}*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        measured += numbers(result) if result["bench"] == bench else []
    files = store.files(f"bench/{bench}")
    return [*measured, *(store.read(files, BENCH).to_pylist() if files else ())]


def numbers(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows and ratios of the JSON `result` as rows of the schema."""
    origin = {"bench": result["bench"], "device": result["device"]}
    measured = [origin | number for row in result["rows"] for number in _measurements(row)]
    return measured + [origin | _promise(name, ratio) for name, ratio in result["ratios"].items()]


def _measurements(row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A number for each of a row's floats, summaries and bytes; the rest says what they are of."""
    said = _named(row)
    measured: dict[str, Any] = {}
    if "median" in said:  # a summary spread over the row
        measured["median"] = {name: said.pop(name) for name in _SUMMARY}
    unit = said.pop("unit", None)
    for name in list(said):
        if isinstance(said[name], float | Mapping) or (name.endswith("bytes") and said[name] is not None):
            measured[name] = said.pop(name)
    columns: dict[str, Any] = {}
    for column, names in _PLACE.items():
        columns[column] = next((said.pop(name) for name in names if said.get(name) is not None), None)
    said = {name: value for name, value in said.items() if value is not None}
    columns |= {"part": columns["part"] or "all", "details": json.dumps(said)}
    for name, value in measured.items():
        summary = value if isinstance(value, Mapping) else {"median": value}
        known_unit = unit if name == "median" else _unit(name)
        yield columns | _number(name, known_unit, summary)


def _promise(name: str, ratio: Mapping[str, Any]) -> dict[str, Any]:
    said = _named(ratio)
    subject, model = ratio.get("model") or ratio.get("geometry"), said.pop("model", None)
    promised = {column: said.pop(column) for column in ("target", "better")}
    summary = {"median": said.pop("value"), **{key: said.pop(key, None) for key in _SUMMARY[1:]}}
    columns = {"part": RATIO, "model": model, "details": json.dumps(said)}
    return columns | promised | _number(name.removeprefix(f"{subject}: "), RATIO, summary)


def _named(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with random weights under the name that a config has for their geometry."""
    said = dict(row)
    if (geometry := said.pop("geometry", None)) is not None:
        said["model"] = f"random/{geometry}"
    return said


def _number(measure: str, unit: str | None, summary: Mapping[str, Any]) -> dict[str, Any]:
    columns = {"value": summary["median"]} | {name: summary.get(name) for name in _SUMMARY[1:]}
    return {"measure": measure, "unit": unit, **columns}


def _unit(name: str) -> str | None:
    """The unit of a measure, from the end of its name, as in `peak_bytes`."""
    return next((unit for end, unit in _UNITS.items() if name == end or name.endswith(f"_{end}")), None)


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-")
