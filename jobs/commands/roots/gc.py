"""`closelook gc`: removes what killed writers left behind and, if asked, results that the configuration does not need.

The latter often belong to runs with other settings, so each group of files is printed with the reason why it is stale.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from closelook.jobs.config import RunConfig, configured
from closelook.jobs.config.kept import refuse_another
from closelook.jobs.plan.cells import make_plan
from closelook.jobs.plan.node import ModelPlan, Plan, Run
from closelook.jobs.products.relevance import FINER, RELEVANCE
from closelook.jobs.products.table import nodes, stale
from closelook.jobs.store import Artifact, Ledger, Store, key_in, short
from closelook.jobs.store.lock import run_lock
from closelook.jobs.store.manifests import manifest
from closelook.terminal import say

TEMPORARY_AGE_S = 3600.0  # a younger temporary file may belong to a live writer


@dataclass(frozen=True)
class Garbage:
    """Files that can be removed for the same reason."""

    why: str
    files: tuple[str, ...]  # paths; manifests last, so that they still name the files if the removal is interrupted
    leftover: bool = False  # killed writers left them, and no run can use them


def collect(config: RunConfig, store: Store, *, dry_run: bool, stale_too: bool) -> None:
    """Print every group of garbage and remove leftovers and, if `stale_too`, stale files; remove nothing if `dry_run`.

    Raises UserError if the root keeps another configuration than `config`, Locked if a run owns the root.
    """
    refuse_another(config, store)
    with run_lock(store):
        removed = kept = 0
        for group in garbage(config, store):
            say(f"{group.why}: {len(group.files)} files", "bold")
            for path in group.files:
                say(f"  {path}")
            if not (stale_too or group.leftover):
                kept += len(group.files)
                continue
            removed += len(group.files)
            for path in () if dry_run else group.files:
                store.delete(path)
    say(f"{removed} files {'would be ' if dry_run else ''}removed from {store.root}")
    if kept:
        say(f"{kept} files are not needed by config {config.name}: if no other config needs them, --yes removes them")


def garbage(config: RunConfig, store: Store) -> list[Garbage]:
    """The files that no artifact of the plan needs, grouped by reason: first leftovers, then stale files."""
    plan, ledger = make_plan(config, store), Ledger(store)
    temporaries = []
    for path in store.temporaries():
        modified = store.modified_s(path)
        if modified is not None and time.time() - modified > TEMPORARY_AGE_S:
            temporaries.append(path)
    leftovers: dict[str, Iterable[str]] = {
        "left by writers that were killed": temporaries,
        "manifests that cannot be read": ledger.unreadable(),
    }
    if not plan.undecided and all(ledger.is_done(planned.artifact) for planned in plan.cells()):
        notes = store.files("attempts", ".json", recursive=True)
        leftovers["notes of workers that ended; every cell is complete"] = notes
    groups = [Garbage(why, tuple(files), leftover=True) for why, files in leftovers.items()]
    reasons: dict[str, dict[str, None]] = {}  # paths by reason, each path once and in order
    for why, path in _outdated(config, ledger, plan):
        reasons.setdefault(why, {})[path] = None
    for why, files in reasons.items():
        groups.append(Garbage(why, tuple(sorted(files, key=lambda path: path.startswith("manifest/")))))
    return [group for group in groups if group.files]


def _outdated(config: RunConfig, ledger: Ledger, plan: Plan) -> Iterator[tuple[str, str]]:
    """(reason, path) of files in the places of planned artifacts that the plan does not need.

    They belong to artifacts of other keys, to artifacts made of outdated ones, or to other cuts into units.
    """
    every = {item.artifact: (product, item) for product, item in nodes(Run(config, plan, ledger))}
    reasons: dict[tuple[Artifact, str], str] = {}  # by planned artifact and the shortened key that replaced files have
    for artifact, name in stale(ledger, every):
        record, (product, _) = ledger.named(name) or {}, every[artifact]
        why = product.outdated
        if product in (RELEVANCE, *FINER.values()):
            why = _difference(config, record, plan.by_name[artifact.model], artifact)
        reasons[artifact, short(key_in(record))] = why
        for path in (*ledger.belongings(artifact, record), manifest(name)):
            yield why, path
    for artifact, (product, item) in every.items():
        begun = f"parts of {product.title} of other settings or code, never completed"
        yield from ((reasons.get((artifact, key), begun), path) for path, key in ledger.others(artifact))
        entered = ledger.record(artifact)
        if entered is None or not ledger.is_done(artifact):
            continue
        if any(not ledger.is_done(part) and ledger.described_damage(part) is None for part in item.made_of):
            for path in (*ledger.belongings(artifact, entered), manifest(artifact.name)):
                yield product.outdated, path
            continue
        listed = set(ledger.belongings(artifact, entered))
        for folder in artifact.folders:
            for shard in ledger.shards(artifact, folder):
                if f"{folder}/{shard}" not in listed:
                    yield f"parts of complete {product.title} that were cut into other batches", f"{folder}/{shard}"


def _difference(config: RunConfig, record: dict[str, Any], model: ModelPlan, artifact: Artifact) -> str:
    """The reason why a cell is stale: how the manifest `record` differs from the planned cell that replaces it."""
    inputs = model.inputs[artifact.task]
    chosen = next(planned.chosen for planned in model.cells if planned.artifact == artifact)
    method = configured(config)[artifact.method].configured(**chosen)
    samples, weights = record.get("inputs", {}).get("sha256"), record.get("model", {}).get("identity")
    parts = []
    if samples not in (None, inputs.digest):
        parts.append("other samples")
    if weights not in (None, model.resolved.identity):
        parts.append("other weights")
    if record.get("method") not in (None, json.loads(json.dumps(method.key()))):
        parts.append("another version or other options of the method")
    return f"cells of another run: {'; '.join(parts) or 'other settings or code'}"
