"""The store: artifacts and their keys, the ledger of finished artifacts, atomic writes, checked reads, root lock."""

from closelook.jobs.store.artifacts import (
    Artifact,
    artifact_in,
    is_complete,
    key_in,
    key_of,
    samples_of,
    short,
    views_of,
)
from closelook.jobs.store.files import TEMPORARY, Damaged, StoreError, StoreFull, Written
from closelook.jobs.store.ledger import Ledger, State
from closelook.jobs.store.shards import Columns, Origin, Store

__all__ = [
    "TEMPORARY",
    "Artifact",
    "Columns",
    "Damaged",
    "Ledger",
    "Origin",
    "State",
    "Store",
    "StoreError",
    "StoreFull",
    "Written",
    "artifact_in",
    "is_complete",
    "key_in",
    "key_of",
    "samples_of",
    "short",
    "views_of",
]
