"""`closelook gc`: removes what killed writers left behind and, if asked, results that the configuration does not need.

The latter often belong to runs with other settings, so each group of files is printed with the reason why it is stale.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from closelook.jobs.config import RunConfig
from closelook.jobs.config.kept import refuse_another
from closelook.jobs.plan.cells import make_plan
from closelook.jobs.plan.node import Run
from closelook.jobs.products.table import nodes, stale
from closelook.jobs.store import Ledger, Store, short
from closelook.jobs.store.lock import run_lock
from closelook.jobs.store.shards import manifest
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
    groups = [Garbage("left by writers that were killed", tuple(temporaries), leftover=True)]
    if not plan.undecided and all(ledger.is_done(planned.artifact) for planned in plan.cells()):
        notes = store.files("attempts", ".json", recursive=True)
        groups.append(Garbage("notes of workers that ended; every cell is complete", tuple(notes), leftover=True))
    reasons: dict[str, dict[str, None]] = {}  # paths by reason, each path once and in order
    for why, path in _outdated(Run(config, plan, ledger)):
        reasons.setdefault(why, {})[path] = None
    groups += [Garbage(why, tuple(files)) for why, files in reasons.items()]
    return [group for group in groups if group.files]


def _outdated(run: Run) -> Iterator[tuple[str, str]]:
    """(reason, path) of files in the places of planned artifacts that the plan does not need, manifests last."""
    ledger, products = run.ledger, {node.artifact: product for product, node in nodes(run)}
    for artifact, product in products.items():
        record = ledger.record(artifact)
        listed = set(record["files"]) if record is not None and ledger.is_done(artifact) else None
        for path, key in ledger.shards(artifact):
            if key != short(artifact.key):
                yield product.outdated, path
            elif listed is not None and path not in listed:
                yield f"parts of complete {product.title} that were cut into other batches", path
    for artifact, name in stale(ledger, products):
        for path in (*ledger.belongings(ledger.named(name) or {}), manifest(name)):
            yield products[artifact].outdated, path
