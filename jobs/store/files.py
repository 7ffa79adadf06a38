"""Files under one root, each written in one step.

The root is a local path, ``file://``, ``s3://`` or ``gs://``. A file becomes visible only when it is complete: by a
rename locally, by a single put on object stores. Errors that pass by themselves are waited out (jobs/store/retry.py).
No path leads out of the root.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

import pyarrow as pa
import pyarrow.fs as pafs

from jobs.store.retry import one_line, retried
from jobs.store.spent import COMMIT, READ, spending
from lrp_core.records.types import UserError

TEMPORARY = ".tmp-"
T = TypeVar("T")
_READS_AT_ONCE = 32
_PIECE_BYTES = 1 << 25
#: Where object stores look for credentials; the end of their error messages.
_CREDENTIALS = {
    "s3": " (credentials are AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, another endpoint is AWS_ENDPOINT_URL)",
    "gs": " (credentials are the file named by GOOGLE_APPLICATION_CREDENTIALS)",
}


class StoreError(UserError):
    """The root cannot be used as asked."""


class Damaged(StoreError):
    """A file under the root is not as it was written; the next `closelook run` makes it again."""

    exit_code = 1


@dataclass(frozen=True)
class Written:
    """The content of a file, as the process knows it that wrote the file."""

    size: int  # bytes
    sha256: str  # hex
    rows: int | None = None  # None of a file that is no Parquet


class StoreFull(OSError):
    """No space is left under the root; nothing of the file being written is visible."""

    def __str__(self) -> str:
        return self.strerror or "no space left"


class Files:
    """Paths are relative to the root, with forward slashes. Cheap to pickle: workers open their own file system."""

    def __init__(self, root: str) -> None:
        """Raises StoreError when the root is no path or URL of a supported kind."""
        if not root.strip():
            raise StoreError("the root is empty: give a folder, which may not exist yet, or an s3:// or gs:// URL")
        self.root = root if "://" in root else os.path.abspath(os.path.expanduser(root))
        if _has_credentials(self.root):  # roots are told, and kept in manifests
            raise StoreError(f"the root has credentials in it: take them from the environment{self._hint()}")
        try:
            self._fs, base = retried(lambda: pafs.FileSystem.from_uri(_with_single_puts(self.root)))
        except (pa.ArrowInvalid, OSError) as error:
            raise StoreError(f"cannot use the root {root}: {one_line(error)}{self._hint()}") from None
        #: Called before every write and removal; raises, if the store may be written no more, why.
        self.check: Callable[[], None] = _nothing
        self._local = isinstance(self._fs, pafs.LocalFileSystem)
        self._base = os.path.realpath(base) if self._local else base.rstrip("/")
        if self._local and os.path.exists(self._base) and not os.path.isdir(self._base):
            raise StoreError(f"the root {root} is a file: give a folder, which may not exist yet")

    def __reduce__(self) -> tuple[type[Files], tuple[str]]:
        return type(self), (self.root,)

    @contextmanager
    def guarded(self, check: Callable[[], None]) -> Iterator[None]:
        """Inside, this `check` is called before every write and removal."""
        self.check = check
        try:
            yield
        finally:
            self.check = _nothing

    def url(self, path: str = "") -> str:
        """`path` as a person would type it."""
        return f"{self.root.rstrip('/')}/{path}".rstrip("/")

    def _hint(self) -> str:
        return _CREDENTIALS.get(self.root.partition("://")[0], "")

    @spending(COMMIT)
    def write_bytes(self, path: str, data: bytes) -> Written:
        """Replace the file at `path` in one step. Raises StoreFull when the disk is full, else OSError."""
        target = self._at(path)
        self.check()
        try:
            retried(lambda: self._put(target, data))
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise StoreFull(errno.ENOSPC, f"no space left under {self.root}: free some and run again") from error
            raise
        return written(data)

    def _put(self, target: str, data: bytes) -> None:
        if self._local:
            _write_local(target, data)
        else:
            with self._fs.open_output_stream(target) as stream:
                stream.write(data)

    @spending(READ)
    def read_bytes(self, path: str) -> bytes:
        """Raises FileNotFoundError."""

        def read() -> bytes:
            with self._fs.open_input_file(self._at(path)) as stream:
                return stream.read()

        return retried(read)

    def pieces(self, path: str) -> Iterator[bytes]:
        """The content of a file, a few MB at a time. Raises FileNotFoundError."""
        start, piece = 0, self._piece(path, 0)
        while piece:
            yield piece
            start += len(piece)
            piece = self._piece(path, start) if len(piece) == _PIECE_BYTES else b""

    def _piece(self, path: str, start: int) -> bytes:
        def read() -> bytes:
            with self._fs.open_input_file(self._at(path)) as stream:
                return stream.read_at(min(_PIECE_BYTES, stream.size() - start), start)

        return retried(read)

    def read_all(self, paths: Sequence[str]) -> list[bytes | None]:
        """The content of each file; None of files that do not exist (any more)."""

        def read(path: str) -> bytes | None:
            try:
                return self.read_bytes(path)
            except FileNotFoundError:
                return None

        return self.at_once(read, paths)

    def at_once(self, read: Callable[[str], T], paths: Sequence[str]) -> list[T]:
        """The results of `read` for each path, in order; many at once from object stores, whose answers take time."""
        if self._local or len(paths) < 2:
            return [read(path) for path in paths]
        with ThreadPoolExecutor(min(_READS_AT_ONCE, len(paths))) as threads:
            return list(threads.map(read, paths))

    @spending(COMMIT)
    def delete(self, path: str) -> None:
        """Remove a file; one that is gone already is no error. Raises where this run may write to the store no more."""
        self.check()
        try:
            retried(lambda: self._fs.delete_file(self._at(path)))
        except FileNotFoundError:
            return

    def files(self, folder: str, suffix: str = ".parquet", recursive: bool = False) -> list[str]:
        """Complete files below `folder`, sorted; none when it does not exist."""
        return list(self.stamps(folder, suffix, recursive))

    def stamps(self, folder: str, suffix: str = ".parquet", recursive: bool = False) -> dict[str, tuple[int, int]]:
        """Time of change (ns) and size of the complete files below `folder`, by their paths, sorted."""
        stamps = {}
        for path, info in self._listed(folder, recursive).items():
            if info.is_file and path.endswith(suffix) and not info.base_name.startswith((".", "_")):
                stamps[path] = info.mtime_ns or 0, info.size
        return stamps

    def temporaries(self) -> list[str]:
        """The files that killed writers left behind."""
        listed = self._listed("", recursive=True)
        return [path for path, info in listed.items() if info.base_name.startswith(TEMPORARY)]

    def _listed(self, folder: str, recursive: bool) -> dict[str, pafs.FileInfo]:
        """All that is below `folder`, by its path, sorted."""
        selector = pafs.FileSelector(self._at(folder), allow_not_found=True, recursive=recursive)
        infos = {info.path[len(self._base) + 1 :]: info for info in self._info(selector)}
        return dict(sorted(infos.items()))

    def exists(self, path: str) -> bool:
        return self._info(self._at(path)).type != pafs.FileType.NotFound

    def modified_s(self, path: str) -> float | None:
        """Seconds since the epoch by the store's own clock; None when the file is gone."""
        modified = self._info(self._at(path)).mtime_ns
        return None if modified is None else modified / 1e9

    def _info(self, path_or_selector: str | pafs.FileSelector) -> Any:
        """The file system's facts about a path, or about all that a selector selects."""
        return retried(lambda: self._fs.get_file_info(path_or_selector))

    def _at(self, path: str) -> str:
        """The absolute path of `path`. Raises StoreError if it would lie outside the root."""
        parts = PurePosixPath(path).parts
        full = "/".join([self._base, *parts])
        outside = ".." in parts or path.startswith("/")
        if self._local and not outside:
            outside = os.path.commonpath([self._base, os.path.realpath(full)]) != self._base
        if outside:
            raise StoreError(f"{path} lies outside the root {self.root}")
        return full


def written(data: bytes) -> Written:
    """The record of a file with this content."""
    return Written(len(data), hashlib.sha256(data).hexdigest())


def _has_credentials(root: str) -> bool:
    if "://" not in root:
        return False
    parts = urlsplit(root)
    return "@" in parts.netloc or any(re.search("key|secret|token", name) for name, _ in parse_qsl(parts.query))


def _with_single_puts(root: str) -> str:
    """The URL of an S3 root, so that a file of less than 5 MB is one request instead of three."""
    if not root.startswith("s3://"):
        return root
    return f"{root}{'&' if '?' in root else '?'}allow_delayed_open=true"


def _nothing() -> None:
    """The check of a store that is not guarded."""


def _write_local(target: str, data: bytes) -> None:
    folder, name = os.path.split(target)
    os.makedirs(folder, exist_ok=True)
    temporary = os.path.join(folder, f"{TEMPORARY}{uuid.uuid4().hex}-{name}")
    try:
        with open(temporary, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, target)
    except OSError:
        if os.path.exists(temporary):
            os.remove(temporary)
        raise
