"""The forgotten samples of a root: salted hashes of their ids, and the hashes that artifacts' keys were made of before.

Forgetting changes no key, so that no artifact need be computed again: the file maps hashes of the views without the
samples to those of the views with them, and keeps the ranks by which the samples were drawn into random subsets.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace

from evaluation.benchmark.forgotten import name_of
from jobs.store.files import Files, StoreError
from jobs.store.shards import Store

_PATH = "forgotten.json"
_TURN_BYTES = 8
_FIRST, _LAST = bytes(_TURN_BYTES), b"\xff" * _TURN_BYTES


@dataclass(frozen=True)
class Forgotten:
    """The forgotten samples of a root."""

    salt: str = ""
    ids: tuple[str, ...] = ()  # salted hashes of the samples' ids, in hex
    #: By placeholder and seed, a number (hex) that keeps the sample's rank among all others when subsets are drawn.
    draws: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    #: By the hash of views without the samples, the hash with them, of which keys of artifacts were made.
    digests: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, store: Store) -> Forgotten:
        """The forgotten samples of this root, read once. Raises StoreError if their file cannot be read."""
        return store.kept("forgotten", _PATH, lambda: _read(store))

    def save(self, store: Store) -> None:
        """Write the file of forgotten samples. Call it before any artifact is changed."""
        store.write_bytes(_PATH, json.dumps(asdict(self), indent=1, sort_keys=True).encode())
        store.forget_kept("forgotten")

    def with_samples(self, names: Collection[str], every: Iterable[str], seeds: Iterable[int | str]) -> Forgotten:
        """A copy with these samples forgotten too; random subsets drawn with these `seeds` keep counting them.

        `names` are the ids of the samples, `every` the ids of all samples of the root, placeholders included.
        """
        salted = replace(self, salt=self.salt or secrets.token_hex(16))
        new = {name: salted.name(name) for name in names if salted.hashed(name) not in self.ids}
        draws: dict[str, dict[str, str]] = {placeholder: {} for placeholder in new.values()}
        others = dict.fromkeys(every)
        for seed in seeds:
            turns = {sample: self.draw(seed, sample) for sample in (*others, *new)}
            for name, placeholder in new.items():
                turn = turns.pop(name)
                earlier = max((other for other in turns.values() if other < turn), default=_FIRST)
                later = min((other for other in turns.values() if other > turn), default=_LAST)
                turns[placeholder] = _between(earlier, later)
                draws[placeholder][str(seed)] = turns[placeholder].hex()
        ids = (*self.ids, *map(salted.hashed, new))
        return replace(salted, ids=ids, draws={**self.draws, **draws})

    def hashed(self, sample_id: str) -> str:
        """The salted hash of a sample's id, in hex."""
        return hashlib.sha256(f"{self.salt}:{sample_id}".encode()).hexdigest()

    def name(self, sample_id: str) -> str:
        """The id of the placeholder that a sample has once it is forgotten."""
        return name_of(self.hashed(sample_id))

    def placeholder(self, sample_id: str | None) -> str | None:
        """The id of the placeholder that stands for the sample; None if the sample is not forgotten."""
        if not self.ids or sample_id is None:
            return None
        hashed = self.hashed(sample_id)
        return name_of(hashed) if hashed in self.ids else None

    def draw(self, seed: int | str, sample_id: str) -> bytes:
        """The bytes by which a sample is ranked for subsets of this seed: its hash; of a placeholder, its kept rank."""
        known = self.draws.get(sample_id, {}).get(str(seed))
        return draw_of(seed, sample_id) if known is None else bytes.fromhex(known)


def draw_of(seed: int | str, sample_id: str) -> bytes:
    """The hash of a sample under a seed. A random subset of n samples takes the n with the lowest hashes."""
    return hashlib.sha256(f"{seed}:{sample_id}".encode()).digest()


def _between(earlier: bytes, later: bytes) -> bytes:
    """A number between two hashes, in 8 bytes, with as many trailing zero bits as can be.

    It keeps the rank between these two, and gives away as little as possible of the hash whose place it takes.
    """
    low, high = int.from_bytes(earlier[:_TURN_BYTES]), int.from_bytes(later[:_TURN_BYTES])
    bit = max(0, (low ^ high).bit_length() - 1)  # the first bit in which they differ
    return (high >> bit << bit).to_bytes(_TURN_BYTES)


def _read(files: Files) -> Forgotten:
    """The forgotten samples by the root's file; none if it does not exist. Raises StoreError if it is broken."""
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
