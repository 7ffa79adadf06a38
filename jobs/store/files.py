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

from closelook.jobs.store.exclusive import create_local, create_object
from closelook.jobs.store.retry import one_line, retried
from closelook.lrp_core.records.types import UserError

T = TypeVar("T")
TEMPORARY = ".tmp-"  # the beginning of the names of temporary files
_READS_AT_ONCE = 32
#: By URL scheme, the end of error messages: where the object store takes its credentials from.
_CREDENTIALS = {
    "s3": " (credentials are AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, another endpoint is AWS_ENDPOINT_URL)",
    "gs": " (credentials are the file named by GOOGLE_APPLICATION_CREDENTIALS)",
}


class StoreError(UserError):
    """The root cannot be used as asked."""


class Damaged(StoreError):
    """The files under the root are gone, are not as they were written or contradict each other.

    The next `closelook run` computes again what is missing, and trying again may help.
    """

    exit_code = 1


@dataclass(frozen=True)
class Written:
    """Size, hash and rows of a file, as the process that wrote it computed them."""

    size: int  # bytes
    sha256: str  # hex
    rows: int | None = None  # None if the file is not Parquet


class StoreFull(OSError):
    """No space is left under the root; the file that was being written is not visible, not even in part."""

    def __str__(self) -> str:
        return self.strerror or "no space left"


class Files:
    """The files under a root. Paths are relative to it, with forward slashes.

    Pickles as its root alone: each worker opens its own file system.
    """

    def __init__(self, root: str) -> None:
        """Open `root`, a local path or URL, which need not exist. Raises StoreError for any other root."""
        if not root.strip():
            raise StoreError("no root is given: name a folder (made if it does not exist) or an s3:// or gs:// URL")
        self.root = root if "://" in root else os.path.abspath(os.path.expanduser(root))
        if _has_credentials(self.root):  # roots are printed and stored in manifests
            raise StoreError(
                f"the URL of the root contains credentials: set them in the environment instead{self._hint()}"
            )
        try:
            url = self.root
            if url.startswith("s3://"):  # a file of less than 5 MB is written in one request instead of three
                url += f"{'&' if '?' in url else '?'}allow_delayed_open=true"
            self._fs, base = retried(lambda: pafs.FileSystem.from_uri(url))
        except (pa.ArrowInvalid, OSError) as error:
            raise StoreError(f"cannot use the root {root}: {one_line(error)}{self._hint()}") from None
        #: Called before every write and removal; raises an error if this run may no longer write to the store.
        self.check: Callable[[], None] = _nothing
        self._local = isinstance(self._fs, pafs.LocalFileSystem)
        self._base = os.path.realpath(base) if self._local else base.rstrip("/")
        if self._local and os.path.exists(self._base) and not os.path.isdir(self._base):
            raise StoreError(f"the root {root} is a file: name a folder (made if it does not exist)")

    def __reduce__(self) -> tuple[type[Files], tuple[str]]:
        return type(self), (self.root,)

    @contextmanager
    def guarded(self, check: Callable[[], None]) -> Iterator[None]:
        """Call `check` before every write and removal inside the block; it raises where writing is not allowed."""
        self.check = check
        try:
            yield
        finally:
            self.check = _nothing

    @property
    def remedy(self) -> str:
        """The end of an error message about a lost or damaged file: the command that computes it again."""
        return f"`closelook run --root {self.root}` computes it again"

    def url(self, path: str = "") -> str:
        """The full path or URL of `path`, for messages."""
        return f"{self.root.rstrip('/')}/{path}".rstrip("/")

    def _hint(self) -> str:
        """The end of an error message: where credentials of this kind of root belong; "" for local roots."""
        return _CREDENTIALS.get(self.root.partition("://")[0], "")

    def write_bytes(self, path: str, data: bytes) -> Written:
        """Write or replace the file at `path` in one step. Returns its size and hash.

        Raises StoreFull if no space is left, OSError for other failures, StoreError for a path outside the root.
        """
        target = self._at(path)
        self.check()
        with self._naming_a_full_disk():
            retried(lambda: self._put(target, data))
        return written(data)

    @contextmanager
    def _naming_a_full_disk(self) -> Iterator[None]:
        """Raise StoreFull for an error within that says that no space is left."""
        try:
            yield
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise StoreFull(errno.ENOSPC, f"no space left under {self.root}: free some and run again") from error
            raise

    def _put(self, target: str, data: bytes) -> None:
        """Write `data` to the absolute path `target`; readers see the old file or the whole new one."""
        if self._local:
            _write_local(target, data)
        else:
            with self._fs.open_output_stream(target) as stream:
                stream.write(data)

    def create_file(self, path: str, data: bytes) -> bool:
        """Write the file at `path` unless it exists. Returns True to one of the processes that do so at once."""
        target = self._at(path)
        self.check()
        if self._local:
            with self._naming_a_full_disk():
                return create_local(target, data)
        return create_object(self.root, target, getattr(self._fs, "region", None), data)

    def read_bytes(self, path: str) -> bytes:
        """The content of the file at `path`. Raises FileNotFoundError if there is none."""

        def read() -> bytes:
            with self._fs.open_input_file(self._at(path)) as stream:
                content: bytes = stream.read()
                return content

        return retried(read)

    def read_all(self, paths: Sequence[str]) -> list[bytes | None]:
        """The content of each file, in the order of `paths`; None for files that do not exist."""

        def read(path: str) -> bytes | None:
            try:
                return self.read_bytes(path)
            except FileNotFoundError:
                return None

        return self.at_once(read, paths)

    def at_once(self, read: Callable[[str], T], paths: Sequence[str]) -> list[T]:
        """`read(path)` for each path, in order. On object stores, whose answers take long, in parallel threads."""
        if self._local or len(paths) < 2:
            return [read(path) for path in paths]
        with ThreadPoolExecutor(min(_READS_AT_ONCE, len(paths))) as threads:
            return list(threads.map(read, paths))

    def delete(self, path: str) -> None:
        """Remove a file, if it exists. Raises the error of `check` if this run may no longer write to the store."""
        self.check()
        try:
            retried(lambda: self._fs.delete_file(self._at(path)))
        except FileNotFoundError:
            return

    def files(self, folder: str, suffix: str = ".parquet", recursive: bool = False) -> list[str]:
        """The sorted paths of files with this suffix in `folder`, without names that begin with "." or "_"."""
        return list(self.stamps(folder, suffix, recursive))

    def stamps(self, folder: str, suffix: str = ".parquet", recursive: bool = False) -> dict[str, tuple[int, int]]:
        """(time of change in ns, size in bytes) of the files that `files` lists, by path, sorted by path."""
        stamps = {}
        for path, info in self._listed(folder, recursive).items():
            size = info.size  # None of folders; `info.is_file` takes several times as long
            if size is not None and path.endswith(suffix) and not info.base_name.startswith((".", "_")):
                stamps[path] = info.mtime_ns or 0, size
        return stamps

    def temporaries(self) -> list[str]:
        """The paths of temporary files, which writers leave behind if they are killed."""
        listed = self._listed("", recursive=True)
        return [path for path, info in listed.items() if info.base_name.startswith(TEMPORARY)]

    def _listed(self, folder: str, recursive: bool) -> dict[str, pafs.FileInfo]:
        """The files and folders in `folder` (`recursive`: at any depth), by path, sorted by path."""
        selector = pafs.FileSelector(self._at(folder), allow_not_found=True, recursive=recursive)
        try:
            infos = self._info(selector)
        except (
            FileNotFoundError
        ):  # another process made the folder after Arrow found none, before Arrow made sure of it
            infos = self._info(selector)
        return dict(sorted((info.path[len(self._base) + 1 :], info) for info in infos))

    def exists(self, path: str) -> bool:
        """True if `path` is a file or folder."""
        return self._info(self._at(path)).type != pafs.FileType.NotFound

    def modified_s(self, path: str) -> float | None:
        """The file's last change, in seconds since the epoch by the store's clock; None if there is no file."""
        modified = self._info(self._at(path)).mtime_ns
        return None if modified is None else modified / 1e9

    def _info(self, path_or_selector: str | pafs.FileSelector) -> Any:
        """The FileInfo of a path, or the list of those that a selector selects."""
        return retried(lambda: self._fs.get_file_info(path_or_selector))

    def _at(self, path: str) -> str:
        """The absolute path of `path`. Raises StoreError if it lies outside the root, through `..` or a link."""
        parts = PurePosixPath(path).parts
        full = "/".join([self._base, *parts])
        outside = ".." in parts or path.startswith("/")
        if self._local and not outside:
            outside = os.path.commonpath([self._base, os.path.realpath(full)]) != self._base
        if outside:
            raise StoreError(f"{path} lies outside the root {self.root}")
        return full


def written(data: bytes) -> Written:
    """Size and hash of a file with this content."""
    return Written(len(data), hashlib.sha256(data).hexdigest())


def _has_credentials(root: str) -> bool:
    """True if the URL `root` has a user part, or a query parameter whose name speaks of a key, secret or token."""
    if "://" not in root:
        return False
    parts = urlsplit(root)
    return "@" in parts.netloc or any(re.search("key|secret|token", name) for name, _ in parse_qsl(parts.query))


def _nothing() -> None:
    """The check of a store outside `guarded`: every write is allowed."""


def _write_local(target: str, data: bytes) -> None:
    """Write a local file beside its target, flush it to the disk, then rename it; missing folders are made."""
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
