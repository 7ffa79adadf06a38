"""Files of object stores (s3://, gs://), of the hub (hf://) and of web servers, copied once to this machine.

Copies lie under HF_HOME. A folder of copies is named by a hash of the files' names, sizes and times of change (on the
hub their blobs), so that a changed file is copied again. Credentials come from the environment only.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from glob import has_magic
from pathlib import Path
from typing import IO, Any

from closelook.lrp_core.records.types import UserError

OBJECT_STORES = ("s3", "gs")
HUB = "hf"
WEB = ("http", "https")
SCHEMES = (*OBJECT_STORES, HUB, *WEB)

Open = Callable[[str], Any]  # returns the stream of a listed file, as a context manager
Stamps = Mapping[str, Any]  # by a file's path, what tells it from an older or newer version


def scheme_of(path: str) -> str:
    """The scheme of a URL, such as "s3"; "" for a local path and for file://."""
    scheme, separator, _ = path.partition("://")
    return scheme if separator and scheme != "file" else ""


def download(url: str, suffixes: tuple[str, ...], nested: bool) -> list[Path]:
    """The local copies of the files at `url`.

    `url` names a file, a folder (its files with one of `suffixes`, with `nested` at any depth), or ends in a pattern of
    names. Raises UserError if there is no such file, and OSError if the server cannot be reached now.
    """
    scheme = scheme_of(url)
    if scheme not in SCHEMES:
        raise UserError(f"{url}: {scheme}:// is not supported; give a path, or a URL of {', '.join(SCHEMES)}")
    if scheme in WEB:
        return [_from_web(url)]
    folder, pattern = (url, None) if not has_magic(url) else url.rsplit("/", 1)
    try:
        opened, base, stamps = _on_hub(folder) if scheme == HUB else _in_object_store(folder)
    except FileNotFoundError:
        raise UserError(f"there is nothing at {url}: give the URL of a file or a folder") from None
    except OSError as error:
        raise OSError(f"cannot read {url}: {' '.join(str(error).split())}") from error
    listed = {}  # paths by names below the folder
    for path in sorted(stamps):
        name = path.rpartition("/")[2] if path == base else path.removeprefix(base).removeprefix("/")
        if ("/" in name and not nested) or ".." in name.split("/"):  # ".." would write outside of the folder of copies
            continue
        if fnmatch.fnmatch(name, pattern) if pattern else path == base or name.endswith(suffixes):
            listed[name] = path
    if not listed:
        raise UserError(f"no {' or '.join(suffixes)} file at {url}: give the URL of the data")
    facts = [url, {name: stamps[path] for name, path in listed.items()}]
    return _copied(facts, listed, opened)


def _from_web(url: str) -> Path:
    """The copy of a file that `datasets` keeps, and renews if the file on the server has changed.

    Raises UserError for a file that is not there, and OSError if it cannot be downloaded now.
    """
    from datasets import DownloadManager  # takes a second to import

    try:
        return Path(DownloadManager().download(url))
    except FileNotFoundError as error:
        raise UserError(f"cannot download {url}: {' '.join(str(error).split())}") from error
    except (OSError, ValueError) as error:
        raise OSError(f"cannot download {url}: {' '.join(str(error).split())}") from error


def _in_object_store(url: str) -> tuple[Open, str, Stamps]:
    """(how to open a file, the path of the URL of an object store, the files at and below it).

    Raises FileNotFoundError if there is nothing, and UserError for a URL that pyarrow does not understand.
    """
    import pyarrow as pa
    import pyarrow.fs as pafs

    try:
        files, base = pafs.FileSystem.from_uri(url)
    except pa.ArrowInvalid as error:
        raise UserError(f"cannot use {url}: {' '.join(str(error).split())}") from None
    base = base.rstrip("/")
    base_info = files.get_file_info(base)
    if base_info.type == pafs.FileType.NotFound:
        raise FileNotFoundError(url)
    infos = [base_info] if base_info.is_file else files.get_file_info(pafs.FileSelector(base, recursive=True))
    stamps = {info.path: [info.size, info.mtime_ns] for info in infos if info.is_file}
    return files.open_input_stream, base, stamps


def _on_hub(url: str) -> tuple[Open, str, Stamps]:
    """(how to open a file, the path of a URL of the hub, as hf://datasets/OWNER/NAME@REVISION/FOLDER, the files there).

    Raises FileNotFoundError if there is nothing, and OSError if the hub cannot be reached.
    """
    import httpx
    from huggingface_hub import HfFileSystem

    hub, base = HfFileSystem(), url.partition("://")[2].rstrip("/")
    try:
        base_info = hub.info(base, refresh=True)
        below: Any = {} if base_info["type"] == "file" else hub.find(base, detail=True, refresh=True)
    except httpx.HTTPError as error:
        raise OSError(str(error)) from error
    infos = below.values() if base_info["type"] == "directory" else [base_info]
    return hub.open, base_info["name"], {info["name"]: [info["size"], info.get("blob_id")] for info in infos}


def _copied(facts: list[Any], listed: Mapping[str, str], opened: Open) -> list[Path]:
    """The local copies of files, from their paths by name; those without a copy of these `facts` are copied.

    Raises OSError.
    """
    from huggingface_hub.constants import HF_HOME

    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    folder = Path(HF_HOME) / "closelook" / digest[:32]
    copies = []
    for name, path in listed.items():
        copy = folder / name
        if not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            with opened(path) as source, tempfile.NamedTemporaryFile(dir=copy.parent, delete=False) as target:
                _copy(source, target)
            os.replace(target.name, copy)  # atomic: another process may copy the same file
        copies.append(copy)
    return copies


def _copy(source: IO[bytes], target: Any) -> None:
    """Copies a stream into the temporary file `target`, which is removed if that fails."""
    try:
        shutil.copyfileobj(source, target, 1 << 20)
    except BaseException:
        os.unlink(target.name)
        raise
