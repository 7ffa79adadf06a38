"""A store whose file system delays every request, like a distant one, without a server."""

from __future__ import annotations

import os
import time
from typing import Any

import pyarrow.fs as pafs

from jobs.store import Store


class SlowStore(Store):
    """A store in a local folder that is used as object stores are; each of its requests waits first."""

    def __init__(self, root: str, latency_s: float) -> None:
        super().__init__(root)
        self._latency_s = latency_s
        self._fs, self._local = _Slow(self._fs, latency_s), False

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return SlowStore, (self.root, self._latency_s)


class _Slow:
    """The requests that a store makes of its file system."""

    def __init__(self, files: pafs.FileSystem, latency_s: float) -> None:
        self._files, self._latency_s = files, latency_s

    def open_input_file(self, path: str) -> pafs.NativeFile:
        return self._waiting(2).open_input_file(path)  # one for the size, one for the content

    def open_output_stream(self, path: str) -> pafs.NativeFile:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return self._waiting().open_output_stream(path)

    def delete_file(self, path: str) -> None:
        self._waiting().delete_file(path)

    def get_file_info(self, where: Any) -> Any:
        return self._waiting().get_file_info(where)

    def _waiting(self, requests: int = 1) -> pafs.FileSystem:
        """The file system, after the time that so many requests take."""
        time.sleep(requests * self._latency_s)
        return self._files
