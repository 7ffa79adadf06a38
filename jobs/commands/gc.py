"""Garbage: what killed writers left, and cells, scores and curves that the configuration at hand has no use for.

The former is nobody's. The latter is often another run's, of other settings: each group says what makes it stale.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from jobs.config import RunConfig
from jobs.config.kept import differences, refuse_another
from jobs.methods import configured
from jobs.plan.cells import ModelPlan, Plan, make_plan
from jobs.plan.products import stale, wanted
from jobs.plan.products.relevance import HEADS, RELEVANCE
from jobs.store import Artifact, Ledger, Store
from jobs.store.artifacts import short
from jobs.store.ledger import key_in, manifest
from jobs.store.lock import run_lock

TEMPORARY_AGE_S = 3600.0  # a younger temporary file may belong to a writer that is alive
MOST_DIFFERENCES = 4  # that a reason lists
#: Settings that decide the numbers of cells, and those of a model that do.
_NUMBERS = ("seed", "tasks", "models", "explanations", "embeddings", "heads", "layers", "labels", "neurons")
_OF_A_MODEL = ("id", "revision", "tokenizer", "attn")


@dataclass(frozen=True)
class Garbage:
    """Files that are stale for one reason, manifests last, so that an interrupted removal can be repeated."""

    why: str
    files: tuple[str, ...]
    leftover: bool = False  # of killed writers: of no use to any run


def collect(config: RunConfig, store: Store, console: Console, *, dry_run: bool, stale_too: bool) -> None:
    """Print every group of garbage and remove leftovers, and what is stale where `stale_too`; nothing if `dry_run`.

    Raises UserError where the root keeps another configuration than `config`.
    """
    refuse_another(config, store)
    with run_lock(store):
        removed = kept = 0
        for group in garbage(config, store):
            console.print(f"{group.why}: {len(group.files)} files", style="bold", markup=False)
            for path in group.files:
                console.print(f"  {path}", markup=False)
            if not (dry_run or stale_too or group.leftover):
                kept += len(group.files)
                continue
            removed += len(group.files)
            for path in () if dry_run else group.files:
                store.delete(path)
    console.print(f"{removed} files {'would be ' if dry_run else ''}removed from {store.root}")
    if kept:
        console.print(f"{kept} files are stale for config {config.name}: if it is the run's own, --yes removes them")


def garbage(config: RunConfig, store: Store) -> list[Garbage]:
    """What no artifact of the plan needs, by reason; leftovers first."""
    plan, ledger = make_plan(config, store), Ledger(store)
    groups = [Garbage("left by writers that were killed", tuple(_temporaries(store)), leftover=True)]
    groups.append(Garbage("manifests that cannot be read", tuple(ledger.unreadable()), leftover=True))
    if not plan.undecided and all(ledger.is_done(planned.cell) for planned in plan.cells()):
        notes = store.files("attempts", ".json", recursive=True)
        groups.append(Garbage("notes of workers that ended; every cell is complete", tuple(notes), leftover=True))
    reasons: dict[str, dict[str, None]] = {}
    for why, path in _outdated(config, ledger, plan):
        reasons.setdefault(why, {})[path] = None
    groups += [Garbage(why, tuple(sorted(files, key=_is_manifest))) for why, files in reasons.items()]
    return [group for group in groups if group.files]


def _temporaries(store: Store) -> Iterator[str]:
    for path in store.temporaries():
        modified = store.modified_s(path)
        if modified is not None and time.time() - modified > TEMPORARY_AGE_S:
            yield path


def _outdated(config: RunConfig, ledger: Ledger, plan: Plan) -> Iterator[tuple[str, str]]:
    """(why, path) of what lies in the places of wanted artifacts and is of no use to them."""
    every = {one.artifact: (product, one) for product, one in wanted(config, plan, ledger)}
    models = {model.name: model for model in plan.models}
    reasons: dict[tuple[Artifact, str], str] = {}  # by wanted artifact and the beginning of the other key
    for artifact, name in stale(ledger, every):
        record, product = ledger.named(name) or {}, every[artifact][0]
        why = _difference(config, record, models[artifact.model], artifact) or product.outdated
        reasons[artifact, short(key_in(record))] = why
        yield from ((why, path) for path in ledger.belongings(artifact, record))
        yield why, manifest(name)
    for artifact, (product, one) in every.items():
        begun = f"parts of {product.plural} of other settings or code, never completed"
        yield from ((reasons.get((artifact, key), begun), path) for path, key in ledger.others(artifact))
        entered = ledger.record(artifact)
        if entered is None or not ledger.is_done(artifact):
            continue
        if any(not ledger.is_done(own) and ledger.described_damage(own) is None for own in one.of):
            yield from ((product.outdated, path) for path in ledger.belongings(artifact, entered))
            yield product.outdated, manifest(artifact.name)
            continue
        cut = f"parts of complete {product.plural} that were cut into other batches"
        listed = set(ledger.belongings(artifact, entered))
        shards = (f"{folder}/{shard}" for folder in artifact.folders for shard in ledger.shards(artifact, folder))
        yield from ((cut, path) for path in shards if path not in listed)


def _difference(config: RunConfig, record: dict[str, Any], model: ModelPlan, artifact: Artifact) -> str:
    """What distinguishes a cell's manifest from what is wanted in its place; empty for products that are no cells."""
    if artifact.product not in (RELEVANCE.name, HEADS.name):
        return ""
    inputs = model.inputs[artifact.task]
    chosen = next(planned.chosen for planned in model.cells if planned.cell == artifact)
    method = configured(config)[artifact.method].configured(**chosen)
    changed = {
        "other samples": (record.get("inputs", {}).get("sha256"), inputs.digest),
        "other weights": (record.get("model", {}).get("identity"), model.resolved.identity),
        "another version or other options of the method": (record.get("method"), json.loads(json.dumps(method.key()))),
    }
    parts = [name for name, (then, now) in changed.items() if then is not None and then != now]
    then, here = record.get("config"), config.model_dump(mode="json")
    settings = [one for one in differences(then, here) if _tells(one.key, artifact)] if then else []
    for setting in settings[:MOST_DIFFERENCES]:
        parts.append(f"{setting.key} was {json.dumps(setting.then)}, is {json.dumps(setting.now)} here")
    if len(settings) > MOST_DIFFERENCES:
        parts.append(f"{len(settings) - MOST_DIFFERENCES} more settings")
    return f"cells of another run: {'; '.join(parts) or 'other code'}"


def _tells(key: str, cell: Artifact) -> bool:
    """Whether the setting may be why this cell's numbers differ."""
    first, *rest = key.split(".")
    if first == "models":
        return rest[0] == cell.model and rest[-1] in _OF_A_MODEL
    return first in _NUMBERS and (not rest or rest[0] == cell.task)


def _is_manifest(path: str) -> bool:
    return path.startswith("manifest/")
