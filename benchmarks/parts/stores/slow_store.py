"""A store whose file system delays every request, as a distant object store would, without a server."""

from __future__ import annotations

import os
import time
from typing import Any

import pyarrow.fs as pafs

from jobs.store import Store


class SlowStore(Store):
    """A store in a local folder that is treated as an object store; each request waits before it is carried out."""

    def __init__(self, root: str, latency_s: float) -> None:
        super().__init__(root)
        self._latency_s = latency_s
        self._fs, self._local = _Slow(self._fs, latency_s), False

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return SlowStore, (self.root, self._latency_s)


class _Slow:
    """A file system with the requests that a store makes, each of them delayed."""

    def __init__(self, files: pafs.FileSystem, latency_s: float) -> None:
        self._files, self._latency_s = files, latency_s

    def open_input_file(self, path: str) -> pafs.NativeFile:
        return self._waiting(2).open_input_file(path)  # an object store takes two requests: for size and for content

    def open_output_stream(self, path: str) -> pafs.NativeFile:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return self._waiting().open_output_stream(path)

    def delete_file(self, path: str) -> None:
        self._waiting().delete_file(path)

    def get_file_info(self, where: Any) -> Any:
        return self._waiting().get_file_info(where)

    def _waiting(self, requests: int = 1) -> pafs.FileSystem:
        """Waits for the time that so many requests take, and returns the file system."""
        time.sleep(requests * self._latency_s)
        return self._files
