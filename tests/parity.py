"""``python -m tests.parity OLD_ROOT NEW_ROOT``: whether two roots of one configuration hold the same numbers.

Every Parquet file of every product is compared column by column, bit for bit; means of scores, which are sums in some
order, to 1e-12. Rows are joined on the columns that name them. Manifests are compared in what they count and choose.
Of the report, the numbers of every table are joined on their ids, the points of every figure on its panels and lines,
and the marks of every drawing are counted by shape and colour: words and layout are free. Measured times are left
aside.

Exit code 1 and a line for each difference; what only one root has is a difference too, unless ``--common`` asks for
the shared artifacts alone. Metrics that only the new root has are none: numbers were added, not changed.

``python -m tests.parity --keep FILE ROOT`` writes ten samples of every relevance and heads cell, the fixture that
`tests/test_parity.py` holds today's code against.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from closelook.evaluation.report.frame import FRAME

CELL = ("model", "task", "dtype", "method")
VARIANT = ("explanation", "embedding", "tokens", "scope")
INPUTS = ("position", "target_id", "foil_id")
KEPT = 10  # samples of a cell
MEAN_TOLERANCE = 1e-12
SUM_TOLERANCE = 1e-9  # of what a report computes from means
#: Tables, figures and drawings of measured times and memory: their ids are compared, their numbers are not.
MEASURED = ("runtime", "memory", "seconds_by_length", "largest_batches", "table8")
MEASURED_COLUMNS = ("ms a sample", "ms")  # likewise, in other tables
NEURON = ("layer", "neuron", "rank")
COST = ("wall_s", "peak_bytes", "planned_bytes", "chunk", "value", "q1", "q3", "n", "device", "details")


@dataclass(frozen=True)
class Product:
    """A folder of the store. Its folders' partition keys and the columns `names` name a row."""

    folder: str
    names: tuple[str, ...]
    tolerance: float = 0.0
    left_aside: tuple[str, ...] = ()  # columns that hold measured times and memory
    group: tuple[str, ...] = ()  # columns, beside partition keys, that name an artifact of several in a folder


PRODUCTS = (
    Product("benchmark/generic", ("sample_id", "where", "reason")),
    Product("benchmark/views", ("sample_id", "where", "reason")),
    Product("relevance", ("explanation", "embedding", "sample_id")),
    Product("heads", ("explanation", "pooling", "sample_id")),
    Product("layers", ("explanation", "embedding", "layer", "sample_id")),
    Product("labels", ("embedding", "label_id", "sample_id")),
    Product("neurons", ("explanation", "sample_id")),
    Product("scores", (*VARIANT, "metric"), MEAN_TOLERANCE, group=CELL),
    Product("scores_samples", (*VARIANT, "sample_id"), group=CELL),
    Product("layer_scores", (*VARIANT, "layer", "metric"), MEAN_TOLERANCE, group=CELL),
    Product("layer_scores_samples", (*VARIANT, "layer", "sample_id"), group=CELL),
    Product("pruning", ("pooling", "order", "seed", "half", "step"), group=("method",)),
    Product("curves", ("explanation", "embedding", "perturbation", "order", "percent", "target_id", "sample_id")),
    Product("randomisation", ("explanation", "embedding", "step", "sample_id")),
    Product("shapley", ("explanation", "embedding", "sample_id")),
    Product("trials", ("sample_id",)),
    Product("knockouts", ("explanation", "ranking", "sample_id")),
    Product("contexts", NEURON),
    Product("activations", NEURON),
    Product("heatmaps", NEURON),
    Product("ablations", ("sample_id",)),
    Product("sources", ("way", "explanation", "ablated", "sample_id")),
    Product("runtime", ("batch_id", "method", "stage", "length", "batch"), left_aside=COST),
    Product("bench", ("part", "model", "task", "dtype", "method", "length", "measure"), left_aside=COST),
)
#: What a manifest says of how and when an artifact was made, not of what it holds.
HOW_MADE = (
    "written",
    "versions",
    "config",
    "configured",
    "shards",
    "files",
    "bytes",
    "hashes",
    "again",
    "fallbacks",
    "key",
    "state",
)


def read(root: Path, product: Product | str) -> dict[str, pa.Table]:
    """The rows of a product by artifact, partition keys as columns; rejects of a product are artifacts of their own."""
    product = product if isinstance(product, Product) else next(known for known in PRODUCTS if known.folder == product)
    tables: dict[str, list[pa.Table]] = {}
    for path in sorted((root / product.folder).rglob("*.parquet")):
        parts = path.relative_to(root / product.folder).parts[:-1]
        table = pq.ParquetFile(path).read().replace_schema_metadata(None)
        for artifact, rows in _by_group(table, product.group):
            name = "/".join([part.split("=")[-1] for part in parts] + artifact)
            for column, value in (part.split("=", 1) for part in parts if "=" in part):
                rows = (
                    rows if column in rows.column_names else rows.append_column(column, pa.array([value] * len(rows)))
                )
            tables.setdefault(name, []).append(rows)
    return {artifact: pa.concat_tables(rows, promote_options="permissive") for artifact, rows in tables.items()}


def _by_group(table: pa.Table, group: tuple[str, ...]) -> Iterator[tuple[list[str], pa.Table]]:
    """The rows of each artifact in a file: files of most products hold one."""
    columns = [name for name in group if name in table.column_names]
    for name in columns:
        table = table.set_column(table.column_names.index(name), name, table[name].cast(pa.string()))
    if not columns:
        yield [], table
    elif len(table):
        artifacts = pc.binary_join_element_wise(*(table[name] for name in columns), "/")
        for artifact in pc.unique(artifacts).to_pylist():
            yield [artifact], table.filter(pc.equal(artifacts, artifact))


def differences(
    old: Path, new: Path, tolerance: float = 0.0, common: bool = False, products: tuple[Product, ...] = PRODUCTS
) -> Iterator[str]:
    """One line for everything in which the products of the roots differ, and for a folder that none of them names."""
    known = tuple(product.folder for product in products)
    for root in (old, new):
        for path in sorted(root.rglob("*.parquet")):
            folder = path.relative_to(root).parts
            if products == PRODUCTS and folder[0] not in known and "/".join(folder[:2]) not in known:
                yield f"{path}: no product of {__name__} lies there"
    for product in products:

        def compare(where: str, before: pa.Table, after: pa.Table, product: Product = product) -> Iterator[str]:
            return _compare(where, product, before, after, max(tolerance, product.tolerance))

        yield from _joined(product.folder, read(old, product), read(new, product), common, compare)


def _joined(
    title: str, before: Mapping[str, Any], after: Mapping[str, Any], common: bool, compare: Callable[..., Iterator[str]]
) -> Iterator[str]:
    """Compare what both have under one name; a line for each name that one of them lacks."""
    for name in sorted(before.keys() | after.keys()):
        if name in before and name in after:
            yield from compare(f"{title} {name}", before[name], after[name])
        elif not common:
            yield f"{title} {name}: only in the {'old' if name in before else 'new'} root"


def _compare(where: str, product: Product, old: pa.Table, new: pa.Table, tolerance: float) -> Iterator[str]:
    names = [name for name in product.names if name in old.column_names and name in new.column_names]
    if "metric" in names:
        new = new.filter(pc.is_in(new["metric"], pc.unique(old["metric"].combine_chunks())))
    old, new = (_sorted(table, names) for table in (old, new))
    if len(old) != len(new) or any(old[name].to_pylist() != new[name].to_pylist() for name in names):
        yield f"{where}: {len(old)} rows became {len(new)}, or other rows"
        return
    for name in old.column_names:
        if name in names or name in product.left_aside:
            continue
        if name not in new.column_names:
            yield f"{where}: the column {name} is gone"
            continue
        gap = _gap(old[name], new[name])
        if gap > tolerance:
            yield f"{where}: {name} differs by up to {gap:.3g}"


def _sorted(table: pa.Table, names: list[str]) -> pa.Table:
    """The rows in the order of what names them; lists are ordered as texts."""
    keys = {}
    for name in names:
        column = table[name]
        keys[name] = pa.array(map(str, column.to_pylist())) if pa.types.is_list(column.type) else column
    return table.take(pc.sort_indices(pa.table(keys), sort_keys=[(name, "ascending") for name in names]))


def _gap(old: pa.ChunkedArray, new: pa.ChunkedArray) -> float:
    """The largest absolute difference; infinite where nulls, texts, lengths or NaNs are not the same."""
    if pa.types.is_list(old.type):
        if old.type != new.type or pc.list_value_length(old).to_pylist() != pc.list_value_length(new).to_pylist():
            return np.inf
        return _gap(pc.list_flatten(old), pc.list_flatten(new))
    if old.to_pylist() == new.to_pylist():
        return 0.0
    if not pa.types.is_floating(old.type) or old.is_null().to_pylist() != new.is_null().to_pylist():
        return np.inf
    left, right = (pc.drop_null(column).to_numpy().astype(np.float64) for column in (old, new))
    same = (left == right) | (np.isnan(left) & np.isnan(right))
    gaps = np.abs(left - right)[~same]
    return 0.0 if not len(gaps) else float(np.nan_to_num(gaps, nan=np.inf).max())


def manifest_differences(old: Path, new: Path, common: bool = False) -> Iterator[str]:
    """One line for everything in which manifests differ, but for how and when artifacts were made."""
    before, after = ({_place(record): record for record in _manifests(root, "")} for root in (old, new))
    yield from _joined("manifest", before, after, common, _compare_manifests)


def _place(record: Mapping[str, Any]) -> str:
    return "/".join(map(str, record["artifact"].values()))


def _compare_manifests(where: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted(old.keys() - set(HOW_MADE)):
        if old[name] != new.get(name):
            yield f"{where}: {name} was {old[name]} and is {new.get(name)}"


def report_differences(old: Path, new: Path, common: bool = False) -> Iterator[str]:
    """One line for every number of a table, point of a figure or kind of mark in which the reports differ."""
    drawings = Path("report", "figures")
    yield from _joined("numbers", _frame(old), _frame(new), common, _values)
    yield from _joined("drawing", _drawings(old / drawings), _drawings(new / drawings), common, _values)


def _drawings(folder: Path) -> dict[str, dict[str, int]]:
    return {path.stem: marks(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.svg"))}


def _frame(root: Path) -> dict[str, dict[str, list[str]]]:
    """The values of every cell of a table, and of every point of a figure, by table and id."""
    numbers: dict[str, dict[str, list[str]]] = {}
    with (root / "report" / FRAME).open(encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            values = [row[name] for name in ("value", "state", "n", "low", "high", "p", "mark", "reference")]
            numbers.setdefault(row["table"].removeprefix("figures/"), {}).setdefault(row["id"], []).extend(values)
    return numbers


def marks(svg: str) -> dict[str, int]:
    """The number of a drawing's marks by shape and colour; the shape of a path is its number of vertices."""
    kinds: Counter[str] = Counter()
    for element in ElementTree.fromstring(svg).iter():
        tag = element.tag.rpartition("}")[2]
        style = element.get("style", "")
        if tag not in ("path", "use", "rect", "circle", "image") or not style:
            continue
        colours = re.findall(r"(fill|stroke|stroke-dasharray): ([^;]+)", style)
        vertices = len(re.findall(r"[A-Za-z]", element.get("d", "")))
        kinds[f"{tag} of {vertices} vertices, {dict(colours)}"] += 1
    return dict(kinds)


def _values(where: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    measured = where.split()[1].startswith(MEASURED)
    for name in sorted(old.keys() | new.keys()):
        if name not in old or name not in new:
            yield f"{where}: {name} is only in the {'old' if name in old else 'new'} report"
        elif not (measured or _is_measured(name) or _alike(old[name], new[name])):
            yield f"{where}: {name} was {old[name]} and is {new[name]}"


def _is_measured(number: str) -> bool:
    """True if a table's number, given by its id, is in a measured column."""
    return any(f"/{column}/" in number for column in MEASURED_COLUMNS)


def _alike(old: Any, new: Any) -> bool:
    """True if two entries of a report are equal, numbers up to the order of their sums."""
    if isinstance(old, list):
        return len(old) == len(new) and all(map(_alike, old, new))
    if old == new:  # also texts, and "nan"
        return True
    try:
        return math.isclose(float(old), float(new), rel_tol=SUM_TOLERANCE, abs_tol=SUM_TOLERANCE)
    except ValueError:  # a text
        return False


def keep(root: Path, file: Path) -> None:
    """Write the first samples of every relevance and heads cell with what they were computed from.

    A row of heads has its pooling, a row of tokens has none.
    """
    tables = []
    stored = {product: read(root, product) for product in ("relevance", "heads")}
    for record in _manifests(root, *(f"{product}." for product in stored)):
        cell = record["artifact"]
        table = stored[cell["product"]]["/".join(cell[name] for name in CELL)]
        table = table.filter(pc.is_in(table["sample_id"], pa.array(sorted(set(table["sample_id"].to_pylist()))[:KEPT])))
        views = root / "benchmark" / "views" / f"tokenizer={record['inputs']['tokenizer']}" / f"task={cell['task']}"
        rows = [row for path in sorted(views.glob("*.parquet")) for row in pq.ParquetFile(path).read().to_pylist()]
        view = {row["sample_id"]: row for row in rows}
        columns = {name: table[name] for name in (*CELL, "explanation", "sample_id")}
        for name in ("embedding", "pooling"):
            columns[name] = table[name] if name in table.column_names else pa.nulls(len(table), pa.string())
        for name, kind in (("input_ids", pa.list_(pa.int32())), *((n, pa.int32()) for n in INPUTS)):
            columns[name] = pa.array([view[sample][name] for sample in table["sample_id"].to_pylist()], kind)
        tables.append(pa.table(columns | {"relevance": table["relevance"].cast(pa.list_(pa.float64()))}))
    pq.write_table(pa.concat_tables(tables), file, compression="zstd")


def _manifests(root: Path, *prefixes: str) -> Iterator[dict[str, Any]]:
    for path in sorted((root / "manifest").glob("*.json")):
        if path.name.startswith(prefixes):
            yield json.loads(path.read_text(encoding="utf-8"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("roots", nargs="+", type=Path, metavar="ROOT")
    parser.add_argument("--tolerance", type=float, default=0.0)
    parser.add_argument("--common", action="store_true", help="compare the cells that both roots have")
    parser.add_argument("--keep", type=Path, metavar="FILE")
    asked = parser.parse_args()
    if asked.keep is not None:
        return keep(asked.roots[0], asked.keep)
    if len(asked.roots) != 2:
        parser.error("two roots are compared: OLD_ROOT NEW_ROOT")
    lines = list(differences(*asked.roots, tolerance=asked.tolerance, common=asked.common))
    lines += manifest_differences(*asked.roots, common=asked.common)
    lines += report_differences(*asked.roots, common=asked.common)
    print("\n".join(lines) or "the roots hold the same numbers")
    sys.exit(bool(lines))


if __name__ == "__main__":
    main()
