"""How many requests the paper's matrix makes of an object store: its cells and units, with nothing computed.

The stage `attribute` plans, hands out units, commits shards and closes cells of the config `paper` on an S3 server that
counts, once with some samples of each task and once with twice as many. What the second run makes more is the cost of
its units; at that rate, and with the units that the published data have, follows the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jobs.bench.harness import Bench, device_name, parser
from jobs.bench.matrix import attribute, matrix_config, prepare
from jobs.bench.object_store import object_store
from jobs.config import RunConfig
from jobs.store import Store

MATRIX_TARGET = 250_000
GROWTH_TARGET = 2.0
SHARD_ROWS = 32
ROWS = 64  # of each task


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    options = parser("store", __doc__ or "")
    options.add_argument("--rows", type=int, default=ROWS, help=f"samples of each task, default {ROWS}")
    chosen = options.parse_args(arguments)
    bench = Bench("store", device_name("cpu"))
    models = 1 if chosen.quick else None
    counted = []
    with object_store() as server:
        for rows in (chosen.rows, 2 * chosen.rows):
            config = matrix_config(server.root(str(rows)), SHARD_ROWS, models)
            store = Store(config.root)
            prepare(config, store, rows)
            server.requests = 0
            units, cells = attribute(config, store)
            counted.append((units, server.requests))
            bench.row(what="requests", rows=rows, units=units, cells=cells, requests=float(server.requests))
            print(
                f"{rows} samples of each task: {server.requests} requests for {units} units of {cells} cells",
                flush=True,
            )
    (few, before), (many, after) = counted
    bench.ratio("requests of twice the samples", after / before, GROWTH_TARGET, "lower")
    each = (after - before) / (many - few)
    whole = before + each * (
        published_units(matrix_config("runs/paper", RunConfig.load("paper").shard_rows, models)) - few
    )
    name = f"the paper's last {models} models: requests" if models else "the paper's matrix: requests"
    bench.ratio(name, whole, MATRIX_TARGET, "lower", requests_of_a_unit=round(each, 2))
    return bench.finish(chosen)


def published_units(config: RunConfig) -> int:
    """Units of the published samples, heads of all samples that the config `paper` takes for them included."""
    heads = RunConfig.load("paper").heads or {}
    total = 0
    for model in config.models:
        for task in config.tasks:
            samples, _ = config.task(task).published
            total += len(model.dtypes_for(task)) * -(-samples // config.shard_rows)
            total += -(-(heads[task] or samples) // config.shard_rows) if task in heads else 0
    return total


if __name__ == "__main__":
    main()
