"""The store: artifacts and their keys, the ledger of what is done, atomic files, checked reads, the root's lock."""

from jobs.store.artifacts import Artifact, key_of
from jobs.store.files import TEMPORARY, StoreError, StoreFull
from jobs.store.ledger import Ledger, State
from jobs.store.shards import Store

__all__ = ["TEMPORARY", "Artifact", "Ledger", "State", "Store", "StoreError", "StoreFull", "key_of"]
