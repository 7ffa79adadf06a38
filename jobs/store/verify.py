"""Verification of a store: all files are read and compared with the hashes that were taken when they were written."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from jobs.store import damage
from jobs.store.ledger import Ledger
from jobs.store.listings import sizes_in
from jobs.store.records import artifact_in, is_complete
from jobs.store.shards import Store

CHANGED = "has other bytes than were written"
OLD, LOST = "an older version wrote them, without hashes", "the side file with their hashes is lost or changed"


@dataclass(frozen=True)
class Verified:
    """The outcome for one artifact."""

    name: str  # of its manifest
    files: int  # how many it has, without those that are gone or have another size
    faults: dict[str, str]  # by path
    unverified: str = ""  # the reason why its files could not be compared; empty if they were


def verified(ledger: Ledger) -> Iterator[Verified]:
    """Compare every file of every complete artifact with its hash, and yield the outcome for each artifact.

    Files that are gone or have another size are faults without being read. A file whose bytes changed is noted in the
    root as damaged, so that the next run makes it again.
    """
    hashes: dict[str, dict[str, str] | None] = {}  # by name of the side file, which artifacts share
    for name, record in ledger.records():
        artifact = artifact_in(record)
        if artifact is None or not is_complete(record):
            continue
        faults = ledger.damage(artifact)
        listed = [path for path in sizes_in(artifact, record) if path not in faults]
        if not ledger.is_verifiable(record):
            yield Verified(name, len(listed), faults, OLD)
            continue
        side_file = record["hashes"]
        if side_file not in hashes:
            hashes[side_file] = ledger.hashes(record)
        known = hashes[side_file]
        if known is None:
            yield Verified(name, len(listed), faults, LOST)
            continue
        hashed = ledger.store.at_once(partial(sha256_of, ledger.store), listed)
        wrong = [path for path, sha256 in zip(listed, hashed, strict=True) if known.get(path) != sha256]
        if wrong and _was_entered_again(ledger.store, name, record["hashes"]):
            continue  # a run in progress replaced the artifact meanwhile: its new files have other hashes
        for path in wrong:
            damage.note(ledger.store, path, CHANGED)
        yield Verified(name, len(listed), faults | dict.fromkeys(wrong, CHANGED))


def sha256_of(store: Store, path: str) -> str | None:
    """The sha256 of a file's bytes, in hex; None if it does not exist."""
    with suppress(FileNotFoundError):
        digest = hashlib.sha256()
        for piece in store.pieces(path):
            digest.update(piece)
        return digest.hexdigest()
    return None


def _was_entered_again(store: Store, name: str, hashes: str) -> bool:
    """True if the manifest `name` has meanwhile been removed, or rewritten with another file of hashes."""
    record = store.manifest(name)
    return record is None or record.get("hashes") != hashes
