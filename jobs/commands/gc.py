"""Garbage: what killed writers left, and cells, scores and curves that the configuration at hand has no use for.

The former is nobody's. The latter is often another run's, of other settings: each group says what makes it stale.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jobs.config import PruneConfig, RunConfig
from jobs.methods import configured
from jobs.plan.cells import ModelPlan, Plan, PlannedCell, make_plan, stale, state
from jobs.stages.evaluate import is_scored, scores_keys, scores_name
from jobs.stages.prune import CurveSet, is_drawn, wanted_curves
from jobs.store import Cell, Store

TEMPORARY_AGE_S = 3600.0  # a younger temporary file may belong to a writer that is alive
MOST_DIFFERENCES = 4  # that a reason lists
#: Settings that decide the numbers of cells, and those of a model that do.
_NUMBERS = ("seed", "tasks", "models", "explanations", "embeddings", "heads")
_OF_A_MODEL = ("id", "revision", "tokenizer", "attn")


@dataclass(frozen=True)
class Garbage:
    """Files that are stale for one reason, manifests last, so that an interrupted removal can be repeated."""

    why: str
    files: tuple[str, ...]
    leftover: bool = False  # of killed writers: of no use to any run


def garbage(config: RunConfig, store: Store) -> list[Garbage]:
    """What no cell of the plan needs, by reason; leftovers first."""
    plan = make_plan(config, store)
    groups = [Garbage("left by writers that were killed", tuple(_temporaries(store)), leftover=True)]
    if all(state(store, planned.cell) == "done" for planned in plan.cells()):
        notes = store.files("attempts", ".json", recursive=True)
        groups.append(Garbage("notes of workers that ended; every cell is complete", tuple(notes), leftover=True))
    reasons: dict[str, list[str]] = {}
    for why, path in [*_cells(config, store, plan), *_results(config, store, plan)]:
        files = reasons.setdefault(why, [])
        if path not in files:
            files.append(path)
    groups += [Garbage(why, tuple(sorted(files, key=_is_manifest))) for why, files in reasons.items()]
    return [group for group in groups if group.files]


def stale_results(config: RunConfig, plan: Plan, store: Store) -> list[str]:
    """Manifests of scores and curves of wanted places under another key than the wanted one."""
    wanted = {f"scores.{scores_name(planned.cell)}": key for _, planned, key in scores_keys(config, plan, store)}
    wanted |= {curves.name: curves.key for curves in _curves(config, plan)}
    records = ((name, store.manifest(name)) for name in wanted)
    return [name for name, record in records if record is not None and record["key"] != wanted[name]]


def _temporaries(store: Store) -> Iterator[str]:
    for path in store.temporaries():
        modified = store.modified_s(path)
        if modified is not None and time.time() - modified > TEMPORARY_AGE_S:
            yield path


def _cells(config: RunConfig, store: Store, plan: Plan) -> Iterator[tuple[str, str]]:
    """(why, path) of shards, rejects and manifests in the places of planned cells that are of no use to those."""
    places = {_place(planned.cell): (model, planned) for model in plan.models for planned in model.cells}
    reasons: dict[tuple[str, str], str] = {}  # by place and the beginning of the key
    manifests: list[tuple[str, str]] = []
    for name in stale(store, plan):
        record = store.manifest(name) or {}
        cell = Cell(**record["cell"])
        replaced = places.get(_place(cell))
        why = _difference(config, record, *replaced) if replaced else f"{cell.product} that is not wanted here"
        reasons[_place(cell), cell.key[:12]] = why
        manifests.append((why, f"manifest/{name}.json"))
    for place, (_, planned) in places.items():
        cell, rejects = planned.cell, store.cell_rejects(planned.cell)
        record = store.manifest(cell.name) or {}
        used = record["shards"] if record.get("state") == "complete" else None
        for path in [*store.files(store.cell(cell)), *store.files(rejects.rpartition("/")[0])]:
            shard = path.rpartition("/")[2]
            key = shard.removesuffix(".parquet").split("-")[0]
            if key != cell.key[:12]:
                yield reasons.get((place, key), "parts of cells of other settings or code, never completed"), path
            elif path != rejects and used is not None and shard not in used:
                yield "parts of complete cells that were cut into other batches", path
    yield from manifests


def _place(cell: Cell) -> str:
    return f"{cell.product}/{cell.partition}"


def _difference(config: RunConfig, record: dict[str, Any], model: ModelPlan, planned: PlannedCell) -> str:
    """What distinguishes a cell's manifest from what is wanted in its place."""
    inputs, method = model.inputs[planned.cell.task], configured(config)[planned.cell.method]
    changed = {
        "other samples": (record.get("inputs", {}).get("sha256"), inputs.digest),
        "other weights": (record.get("model", {}).get("identity"), model.resolved.identity),
        "another version or other options of the method": (record.get("method"), json.loads(json.dumps(method.key()))),
    }
    parts = [name for name, (then, now) in changed.items() if then is not None and then != now]
    then, now = _flat(record.get("config", {})), _flat(config.model_dump(mode="json"))
    settings = [key for key in {**then, **now} if then and then.get(key) != now.get(key) and _tells(key, planned.cell)]
    for key in settings[:MOST_DIFFERENCES]:
        parts.append(f"{key} was {json.dumps(then.get(key))}, is {json.dumps(now.get(key))} here")
    if len(settings) > MOST_DIFFERENCES:
        parts.append(f"{len(settings) - MOST_DIFFERENCES} more settings")
    return f"cells of another run: {'; '.join(parts) or 'other code'}"


def _flat(settings: Any, prefix: str = "") -> dict[str, Any]:
    """Settings by their dotted path; models by their name."""
    if isinstance(settings, list) and all(isinstance(one, dict) and "name" in one for one in settings):
        settings = {one["name"]: one for one in settings}
    if not isinstance(settings, dict) or not settings:
        return {prefix: settings}
    found: dict[str, Any] = {}
    for key, value in settings.items():
        found |= _flat(value, f"{prefix}.{key}" if prefix else key)
    return found


def _tells(key: str, cell: Cell) -> bool:
    """Whether the setting may be why this cell's numbers differ."""
    first, *rest = key.split(".")
    if first == "models":
        return rest[0] == cell.model and rest[-1] in _OF_A_MODEL
    return first in _NUMBERS and (not rest or rest[0] == cell.task)


def _results(config: RunConfig, store: Store, plan: Plan) -> Iterator[tuple[str, str]]:
    """(why, path) of scores and curves that nothing vouches for, or that another key made."""
    scores, curves = "scores of relevance or evidence that is no longer there", "curves of other heads or settings"
    for _, planned, key in scores_keys(config, plan, store):
        if key is None or not is_scored(store, planned.cell, key):
            paths = (f"{folder}/{scores_name(planned.cell)}.parquet" for folder in (store.scores, store.scores_samples))
            yield from ((scores, path) for path in paths if store.exists(path))
    for wanted in _curves(config, plan):
        begun = [f"{wanted.method}-{wanted.key[:12]}-"]
        keep = tuple((store.manifest(wanted.name) or {})["shards"] if is_drawn(store, wanted) else begun)
        for path in store.files(wanted.folder(store)):
            name = path.rpartition("/")[2]
            if name.startswith(f"{wanted.method}-") and not name.startswith(keep):
                yield curves, path
    for name in stale_results(config, plan, store):
        yield scores if name.startswith("scores.") else curves, f"manifest/{name}.json"


def _curves(config: RunConfig, plan: Plan) -> Iterator[CurveSet]:
    settings = config.prune or PruneConfig()
    return (curves for model in plan.models for curves in wanted_curves(config, settings, model))


def _is_manifest(path: str) -> bool:
    return path.startswith("manifest/")
