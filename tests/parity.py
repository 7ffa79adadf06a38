"""``python -m tests.parity OLD_ROOT NEW_ROOT``: whether two roots of one configuration hold the same numbers.

Relevance, head relevance, scores and pruning curves are joined on what names a row (cell, sample, variant, metric,
point) and compared: bit for bit, or within ``--tolerance``. Times are left aside. Exit code 1 and a line for each
difference; rows that only one root has are differences too, unless ``--common`` asks for the shared cells alone.
Metrics that only the new root has are none: numbers were added, not changed.

``python -m tests.parity --keep FILE ROOT`` writes ten samples of every relevance and heads cell, the fixture that
`tests/test_parity.py` holds today's code against.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

CELL = ("model", "task", "dtype", "method")
VARIANT = ("explanation", "embedding", "tokens", "scope")
INPUTS = ("position", "target_id", "foil_id")
KEPT = 10  # samples of a cell


@dataclass(frozen=True)
class Product:
    """A folder of the store: the columns that name a row, and those that are compared (None: all other numbers)."""

    folder: str
    names: tuple[str, ...]
    values: tuple[str, ...] | None = None


PRODUCTS = (
    Product("relevance", (*CELL, "explanation", "embedding", "sample_id")),
    Product("heads", (*CELL, "explanation", "pooling", "sample_id")),
    Product("scores", (*CELL, *VARIANT, "metric")),
    Product("scores_samples", (*CELL, *VARIANT, "sample_id")),
    Product("pruning", ("model", "task", "dtype", "method", "pooling", "order", "seed", "step")),
)


def read(root: Path, folder: str) -> dict[str, pa.Table]:
    """The rows of a product by cell, partition keys as columns; rejects and leftovers are no rows."""
    tables: dict[str, list[pa.Table]] = {}
    for path in sorted((root / folder).rglob("*.parquet")):
        parts = path.relative_to(root / folder).parts[:-1]
        if any("=" not in part for part in parts):
            continue
        table = pq.ParquetFile(path).read().replace_schema_metadata(None)
        for name, value in (part.split("=", 1) for part in parts):
            table = table.append_column(name, pa.array([value] * len(table), pa.string()))
        for cell, rows in _by_cell(table):
            tables.setdefault(cell, []).append(rows)
    return {cell: pa.concat_tables(rows, promote_options="permissive") for cell, rows in tables.items()}


def _by_cell(table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Files of scores hold one cell each, files of curves one method; so do all others."""
    names = [table[name].cast(pa.string()) for name in CELL if name in table.column_names]
    for index, name in enumerate(n for n in CELL if n in table.column_names):
        table = table.set_column(table.column_names.index(name), name, names[index])
    if len(table):
        cells = pc.binary_join_element_wise(*names, "/")
        for cell in pc.unique(cells).to_pylist():
            yield cell, table.filter(pc.equal(cells, cell))


def differences(
    old: Path, new: Path, tolerance: float = 0.0, common: bool = False, products: tuple[Product, ...] = PRODUCTS
) -> Iterator[str]:
    """One line for everything in which the roots differ."""
    for product in products:
        before, after = read(old, product.folder), read(new, product.folder)
        cells = sorted(before.keys() & after.keys()) if common else sorted(before.keys() | after.keys())
        if not before:
            yield f"{product.folder}: the old root has none"
        for cell in cells:
            if cell not in before or cell not in after:
                yield f"{product.folder} {cell}: only in the {'old' if cell in before else 'new'} root"
            else:
                yield from _compare(f"{product.folder} {cell}", product, before[cell], after[cell], tolerance)


def _compare(where: str, product: Product, old: pa.Table, new: pa.Table, tolerance: float) -> Iterator[str]:
    names = [name for name in product.names if name in old.column_names and name in new.column_names]
    if "metric" in names:
        new = new.filter(pc.is_in(new["metric"], pc.unique(old["metric"].combine_chunks())))
    old, new = (table.sort_by([(name, "ascending") for name in names]) for table in (old, new))
    if len(old) != len(new) or any(old[name].to_pylist() != new[name].to_pylist() for name in names):
        yield f"{where}: {len(old)} rows became {len(new)}, or other rows"
        return
    shared = [name for name in old.column_names if name in new.column_names and name not in names]
    for name in product.values or shared:
        gap = _gap(old[name], new[name])
        if gap > tolerance:
            yield f"{where}: {name} differs by up to {gap:.3g}"


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


def keep(root: Path, file: Path) -> None:
    """Write the first samples of every relevance and heads cell with what they were computed from.

    A row of heads has its pooling, a row of tokens has none.
    """
    tables = []
    stored = {product: read(root, product) for product in ("relevance", "heads")}
    for record in _manifests(root, *(f"{product}." for product in stored)):
        cell = record["cell"]
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
    print("\n".join(lines) or "the roots hold the same numbers")
    sys.exit(bool(lines))


if __name__ == "__main__":
    main()
