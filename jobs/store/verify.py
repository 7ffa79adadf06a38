"""Files read whole and held against the hashes that manifests list: the only way to know of bytes that changed."""

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
    """The outcome of one artifact: the faults of files by path, or the reason why nothing is known of them."""

    name: str  # of its manifest
    files: int
    faults: dict[str, str]
    unverified: str = ""


def verified(ledger: Ledger) -> Iterator[Verified]:
    """Hold every file that a manifest of a complete artifact lists against its hash.

    Files that are gone or of another size are not read. Of one with other bytes, a note is left in the root.
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
            continue  # by a run that goes on meanwhile
        for path in wrong:
            damage.note(ledger.store, path, CHANGED)
        yield Verified(name, len(listed), faults | dict.fromkeys(wrong, CHANGED))


def sha256_of(store: Store, path: str) -> str | None:
    """The hash of a file's bytes, in hex; None where there is no file."""
    with suppress(FileNotFoundError):
        digest = hashlib.sha256()
        for piece in store.pieces(path):
            digest.update(piece)
        return digest.hexdigest()
    return None


def _was_entered_again(store: Store, name: str, hashes: str) -> bool:
    record = store.manifest(name)
    return record is None or record.get("hashes") != hashes
