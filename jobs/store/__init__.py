"""The store: paths, atomic files, checked reads and the root's lock."""

from jobs.store.files import TEMPORARY, Cell, Store, StoreError, StoreFull

__all__ = ["TEMPORARY", "Cell", "Store", "StoreError", "StoreFull"]
