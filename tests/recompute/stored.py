"""The contents of a root as frames of pandas: artifacts that manifests list as complete, and the report's numbers."""

from __future__ import annotations

import csv
import json
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from closelook.evaluation import schema

CELL = ["model", "task", "dtype", "method"]
#: Columns of the report's frame that every row has, possibly empty.
ALWAYS = ("group", "label", "side", "task", "model", "panel", "line")
OF_A_CORPUS = ("contexts", "activations", "heatmaps")
SCHEMAS = {
    "scores": schema.SCORES,
    "scores_samples": schema.SCORES_SAMPLES,
    "layer_scores": schema.LAYER_SCORES,
    "layers": schema.LAYERS,
    "curves": schema.CURVES,
    "ablations": schema.ABLATIONS,
    "sources": schema.SOURCES,
    "pruning": schema.PRUNING,
    "knockouts": schema.KNOCKOUTS,
    "neurons": schema.NEURONS,
    "runtime": schema.RUNTIME,
    "contexts": schema.CONTEXTS,
    "activations": schema.ACTIVATIONS,
    "heatmaps": schema.HEATMAPS,
    "benchmark": schema.GENERIC,
    "views": schema.VIEW,
    "heads": schema.HEADS,
}


class Root:
    """A root's artifacts and its report."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifests = [
            json.loads(file.read_text(encoding="utf-8")) for file in sorted((path / "manifest").glob("*.json"))
        ]

    def records(self, product: str) -> list[dict[str, Any]]:
        """Manifests of a product, of complete artifacts."""
        return [
            record
            for record in self.manifests
            if _artifact(record)["product"] == product and record["state"] == "complete"
        ]

    @cached_property
    def config(self) -> dict[str, Any]:
        """The configuration that the root was last computed with."""
        return yaml.safe_load((self.path / "config.yaml").read_text(encoding="utf-8"))

    def frame(self, product: str) -> pd.DataFrame:
        """All rows of a product of cells, with the names of the cell as columns."""
        frames = []
        for record in self.records(product):
            artifact = _artifact(record)
            keys = {name: artifact[name] for name in CELL if name in artifact}
            named = {"task": "corpus"} if product in OF_A_CORPUS else {}
            parts = [name for name in CELL if name in keys and (product, name) != ("pruning", "method")]
            folders = [f"{named.get(name, name)}={keys[name]}" for name in parts]
            for shard in record["shards"]:
                table = pq.ParquetFile(self.path.joinpath(product, *folders, shard)).read()
                if product in SCHEMAS:
                    schema.check(table.schema, SCHEMAS[product], shard)
                frames.append(_frame(table).assign(**keys))
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()

    def flat(self, product: str) -> pd.DataFrame:
        """All rows of a product that lies in one folder, a file a cell."""
        files = sorted((self.path / product).glob("*.parquet"))
        frames = []
        for file in files:
            table = pq.ParquetFile(file).read()
            schema.check(table.schema, SCHEMAS[product], str(file))
            frames.append(_frame(table))
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()

    def runtime(self) -> pd.DataFrame:
        """Every stored batch, with its model, task and precision."""
        frames = []
        for file in sorted((self.path / "runtime").rglob("*.parquet")):
            table = pq.ParquetFile(file).read()
            schema.check(table.schema, schema.RUNTIME, str(file))
            keys = dict(part.split("=", 1) for part in file.relative_to(self.path).parts if "=" in part)
            frames.append(_frame(table).assign(**keys))
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()

    def bench(self, name: str) -> pd.DataFrame:
        """Results of a benchmark, the last the newest."""
        tables = [pq.ParquetFile(file).read() for file in sorted((self.path / "bench" / name).glob("*.parquet"))]
        return pd.concat([_frame(table) for table in tables], ignore_index=True) if tables else pd.DataFrame()

    @cached_property
    def views(self) -> dict[tuple[str, str], dict[str, dict[str, Any]]]:
        """Samples as a tokenizer sees them, by (tokenizer, task) and sample."""
        views = {}
        for record in self.records("views"):
            artifact = record["artifact"]
            where = (artifact["tokenizer"], artifact["task"])
            folder = self.path / "benchmark" / "views" / f"tokenizer={where[0]}" / f"task={where[1]}"
            rows = [row for shard in record["shards"] for row in _rows(folder / shard)]
            views[where] = {row["sample_id"]: row for row in rows}
        return views

    @cached_property
    def tokenizers(self) -> dict[tuple[str, ...], str]:
        """The tokenizer of the views that a cell of relevance was computed from."""
        return {
            tuple(_artifact(record)[name] for name in CELL): record["inputs"]["tokenizer"]
            for record in self.records("relevance")
        }

    @cached_property
    def relevance(self) -> pd.DataFrame:
        return self.frame("relevance")

    @cached_property
    def report(self) -> list[dict[str, str]]:
        """The rows of the report's frame, each with the labels that it has."""
        with (self.path / "report" / "numbers.csv").open(encoding="utf-8", newline="") as lines:
            return [
                {name: value for name, value in row.items() if value or name in ALWAYS} for row in csv.DictReader(lines)
            ]

    def numbers(self, table: str) -> list[dict[str, str]]:
        """The numbers of a table of the report, each with its id."""
        return [row for row in self.report if row["table"] == table]


def _artifact(record: dict[str, Any]) -> dict[str, Any]:
    return record["artifact"]


def _frame(table: pa.Table) -> pd.DataFrame:
    return table.to_pandas()


def _rows(file: Path) -> list[dict[str, Any]]:
    return pq.ParquetFile(file).read().to_pylist()
