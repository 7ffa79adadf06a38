"""Garbage: cells that another key has replaced, what killed writers left, and marks of finished units."""

from __future__ import annotations

import time
from collections.abc import Iterator

from jobs.config import RunConfig
from jobs.plan import Plan, make_plan, stale, state
from jobs.store import Cell, Store

TEMPORARY_AGE_S = 3600.0  # a younger temporary file may belong to a writer that is alive


def garbage(config: RunConfig, store: Store) -> list[str]:
    """Files that no cell of the plan needs, the manifests last so that an interrupted removal can be repeated."""
    plan = make_plan(config, store)
    files = [path for path in store.temporaries() if _age_s(store, path) > TEMPORARY_AGE_S]
    files += _orphans(store, plan)
    if all(state(store, planned.cell) == "done" for planned in plan.cells()):
        files += store.files("attempts", ".json")
    return files + [f"manifest/{name}.json" for name in stale(store, plan)]


def _orphans(store: Store, plan: Plan) -> Iterator[str]:
    """Shards in the folders of planned cells that belong to another key, or to a plan of other batches."""
    wanted: dict[str, set[str]] = {}
    for planned in plan.cells():
        cell = planned.cell
        record = store.manifest(cell.name)
        complete = record is not None and record["state"] == "complete"
        for folder in (store.cell(cell), store.cell_rejects(cell)):
            wanted.setdefault(folder, set())
            for path in store.files(folder):
                name = path.removeprefix(f"{folder}/")
                if name in record["shards"] if complete and record else _is_of(name, cell):
                    wanted[folder].add(path)
    for folder, keep in wanted.items():
        yield from (path for path in store.files(folder) if path not in keep)


def _is_of(shard: str, cell: Cell) -> bool:
    return shard.startswith(f"{cell.key[:12]}-")


def _age_s(store: Store, path: str) -> float:
    modified = store.modified_s(path)
    return 0.0 if modified is None else time.time() - modified
