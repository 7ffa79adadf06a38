"""A request to stop a run: its workers begin no further unit, and it ends when those in hand are committed."""

from __future__ import annotations

from jobs.store.shards import Store

_PATH = "lock/stop"  # beside the claims of the root's owner, who removes it


def ask(store: Store) -> None:
    """Ask the run that owns the root to stop."""
    store.write_bytes(_PATH, b"")


def is_asked(store: Store) -> bool:
    """True where the run that owns the root is to stop."""
    return store.exists(_PATH)


def clear(store: Store) -> None:
    """Remove a request that was met, or that came when no run was there."""
    store.delete(_PATH)
