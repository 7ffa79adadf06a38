"""Garbage: cells, scores and curves that another key has replaced, and what killed writers and finished units left."""

from __future__ import annotations

import time
from collections.abc import Iterator

from jobs.config import PruneConfig, RunConfig
from jobs.evaluate import is_scored, scores_keys, scores_name
from jobs.plan import Plan, make_plan, stale, state
from jobs.prune import CurveSet, is_drawn, wanted_curves
from jobs.store import Cell, Store

TEMPORARY_AGE_S = 3600.0  # a younger temporary file may belong to a writer that is alive


def garbage(config: RunConfig, store: Store) -> list[str]:
    """Files that no cell of the plan needs, the manifests last so that an interrupted removal can be repeated."""
    plan = make_plan(config, store)
    files = [path for path in store.temporaries() if _age_s(store, path) > TEMPORARY_AGE_S]
    files += _orphans(store, plan)
    results = stale_results(config, plan, store)
    files += [*_unscored(config, store, plan), *_undrawn(config, store, plan)]
    if all(state(store, planned.cell) == "done" for planned in plan.cells()):
        files += store.files("attempts", ".json")
    return files + [f"manifest/{name}.json" for name in [*stale(store, plan), *results]]


def stale_results(config: RunConfig, plan: Plan, store: Store) -> list[str]:
    """Manifests of scores and curves of wanted places under another key than the wanted one."""
    wanted = {f"scores.{scores_name(planned.cell)}": key for _, planned, key in scores_keys(config, plan, store)}
    wanted |= {curves.name: curves.key for curves in _curves(config, plan)}
    records = ((name, store.manifest(name)) for name in wanted)
    return [name for name, record in records if record is not None and record["key"] != wanted[name]]


def _curves(config: RunConfig, plan: Plan) -> Iterator[CurveSet]:
    settings = config.prune or PruneConfig()
    return (curves for model in plan.models for curves in wanted_curves(config, settings, model))


def _unscored(config: RunConfig, store: Store, plan: Plan) -> Iterator[str]:
    """Scores of planned cells that no manifest of their key vouches for."""
    for _, planned, key in scores_keys(config, plan, store):
        if key is None or not is_scored(store, planned.cell, key):
            paths = (f"{folder}/{scores_name(planned.cell)}.parquet" for folder in (store.scores, store.scores_samples))
            yield from (path for path in paths if store.exists(path))


def _undrawn(config: RunConfig, store: Store, plan: Plan) -> Iterator[str]:
    """Shards of wanted sets of curves under another key, or beyond those of a complete set."""
    for curves in _curves(config, plan):
        begun = [f"{curves.method}-{curves.key[:12]}-"]
        keep = tuple((store.manifest(curves.name) or {})["shards"] if is_drawn(store, curves) else begun)
        for path in store.files(curves.folder(store)):
            name = path.rpartition("/")[2]
            if name.startswith(f"{curves.method}-") and not name.startswith(keep):
                yield path


def _orphans(store: Store, plan: Plan) -> Iterator[str]:
    """Shards in the folders of planned cells that belong to another key, or to a plan of other batches."""
    wanted: dict[str, set[str]] = {}
    for planned in plan.cells():
        cell = planned.cell
        record = store.manifest(cell.name)
        complete = record is not None and record["state"] == "complete"
        folder = store.cell(cell)
        wanted.setdefault(store.cell_rejects(cell).rpartition("/")[0], set()).add(store.cell_rejects(cell))
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
