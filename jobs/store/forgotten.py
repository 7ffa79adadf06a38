"""Samples that are forgotten in a root: salted hashes of their ids, and what keys of artifacts were made of before.

No key covers this file. Artifacts keep the keys that they had, since hashes of views stand for the hashes that were
taken while the samples were there, and random subsets of samples are drawn as they were then.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace

from evaluation.benchmark.forgotten import name_of
from jobs.store.files import Files, StoreError
from jobs.store.shards import Store

_PATH = "forgotten.json"


@dataclass(frozen=True)
class Forgotten:
    """The forgotten samples of a root."""

    salt: str = ""
    ids: tuple[str, ...] = ()  # salted hashes, in hex
    #: By placeholder and seed, the hash by which the sample was drawn into random subsets, in hex.
    draws: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    #: By the hash of views without the samples, the hash that keys of artifacts were made of.
    digests: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, store: Store) -> Forgotten:
        """The forgotten samples of this root, read once. Raises StoreError for a file that cannot be read."""
        return store.kept("forgotten", _PATH, lambda: _read(store))

    def save(self, store: Store) -> None:
        """Write the file, before any artifact changes."""
        store.write_bytes(_PATH, json.dumps(asdict(self), indent=1, sort_keys=True).encode())
        store.forget_kept("forgotten")

    def with_sample(self, sample_id: str, seeds: Iterable[int | str]) -> Forgotten:
        """With this sample, which subsets of these seeds keep counting in."""
        salted = replace(self, salt=self.salt or secrets.token_hex(16))
        hashed = salted.hashed(sample_id)
        drawn = {str(seed): draw_of(seed, sample_id).hex() for seed in seeds}
        ids = tuple(dict.fromkeys((*self.ids, hashed)))
        return replace(salted, ids=ids, draws={**self.draws, name_of(hashed): drawn})

    def hashed(self, sample_id: str) -> str:
        """The salted hash of an id."""
        return hashlib.sha256(f"{self.salt}:{sample_id}".encode()).hexdigest()

    def placeholder(self, sample_id: str | None) -> str | None:
        """The id of the sample's placeholder; None of a sample that is not forgotten."""
        if not self.ids or sample_id is None:
            return None
        hashed = self.hashed(sample_id)
        return name_of(hashed) if hashed in self.ids else None

    def draw(self, seed: int | str, sample_id: str) -> bytes:
        """The hash by which a sample, or the one that it stands for, is drawn into subsets of this seed."""
        known = self.draws.get(sample_id, {}).get(str(seed))
        return draw_of(seed, sample_id) if known is None else bytes.fromhex(known)


def draw_of(seed: int | str, sample_id: str) -> bytes:
    """The hash by which a sample is drawn into random subsets: those whose hashes come first are."""
    return hashlib.sha256(f"{seed}:{sample_id}".encode()).digest()


def _read(files: Files) -> Forgotten:
    (text,) = files.read_all([_PATH])
    if text is None:
        return Forgotten()
    try:
        record = json.loads(text)
        return Forgotten(**{**record, "ids": tuple(record["ids"])})
    except (ValueError, KeyError, TypeError):
        raise StoreError(
            f"{files.url(_PATH)} cannot be read, so forgotten samples would come back: restore the file"
        ) from None
