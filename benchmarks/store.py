"""Requests that the paper's matrix makes of an object store: its cells and units, with nothing computed.

The stage `attribute` plans, hands out units, commits shards and closes cells of the config `paper` on an S3 server that
counts, once with some samples of each task and once with twice as many. What the second run makes more is the cost of
its units; at that rate, and with the units that the published data have, follows the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import linear_regression
from typing import Any

from benchmarks.harness import parser
from benchmarks.parts.matrix import attribute, matrix_config, prepare
from benchmarks.parts.object_store import object_store
from jobs.config import RunConfig
from jobs.store import Store

MATRIX_TARGET = 250_000
GROWTH_TARGET = 2.0
SHARD_ROWS = 32
ROWS = 64  # of each task


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    options = parser("store", __doc__)
    options.number("--rows", ROWS, f"samples of each task, at least a shard's {SHARD_ROWS}")
    bench = options.begin(arguments)
    rows = bench.chosen.rows
    if rows < SHARD_ROWS:
        options.error(f"--rows {rows}: a shard has {SHARD_ROWS}, and more shards are to be compared with fewer")
    models = 1 if bench.quick else None
    units, requests = [], []
    with object_store() as server:
        for count in (rows, 2 * rows):
            config = matrix_config(server.root(str(count)), SHARD_ROWS, models)
            store = Store(config.root)
            prepare(config, store, count)
            server.requests = 0
            of_units, cells = attribute(config, store)
            made = server.requests
            bench.row(what="requests", rows=count, units=of_units, cells=cells, requests=float(made))
            print(f"{count} samples of each task: {made} requests for {of_units} units of {cells} cells", flush=True)
            units.append(of_units)
            requests.append(made)
    bench.ratio("requests of twice the samples", requests[1] / requests[0], GROWTH_TARGET, "lower")
    line = linear_regression(units, requests)
    published = matrix_config("runs/paper", RunConfig.load("paper").shard_rows, models)
    whole = line.intercept + line.slope * published_units(published)
    name = f"the paper's last {models} models: requests" if models else "the paper's matrix: requests"
    bench.ratio(name, whole, MATRIX_TARGET, "lower", requests_of_a_unit=round(line.slope, 2))
    return bench.finish()


def published_units(config: RunConfig) -> int:
    """Units of the published samples, heads of all samples that the config `paper` takes for them included."""
    heads = RunConfig.load("paper").heads or {}
    total = 0
    for model in config.models:
        for task in config.tasks:
            samples, _ = config.task(task).published
            total += len(model.dtypes_for(task)) * -(-samples // config.shard_rows)
            if task in heads:
                total += -(-(heads[task] or samples) // config.shard_rows)
    return total
