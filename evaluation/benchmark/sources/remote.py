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
from collections.abc import Mapping
from glob import has_magic
from pathlib import Path
from typing import TYPE_CHECKING, Any

from httpx import HTTPError

from closelook.lrp_core.records.types import UserError

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

OBJECT_STORES = ("s3", "gs")
HUB = "hf"
WEB = ("http", "https")
SCHEMES = (*OBJECT_STORES, HUB, *WEB)


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
        files, place = _file_system(folder)
        info = files.info(place)
        base = info["name"]  # as the store spells it
        infos = {base: info} if info["type"] == "file" else files.find(base, detail=True)
    except FileNotFoundError:
        raise UserError(f"there is nothing at {url}: give the URL of a file or a folder") from None
    except (OSError, HTTPError) as error:
        raise OSError(f"cannot read {url}: {' '.join(str(error).split())}") from error
    listed = {}  # paths by names below the folder
    for path in sorted(infos):
        name = path.rpartition("/")[2] if path == base else path.removeprefix(base).removeprefix("/")
        if ("/" in name and not nested) or ".." in name.split("/"):  # ".." would write outside of the folder of copies
            continue
        if fnmatch.fnmatch(name, pattern) if pattern else path == base or name.endswith(suffixes):
            listed[name] = path
    if not listed:
        raise UserError(f"no {' or '.join(suffixes)} file at {url}: give the URL of the data")
    facts = [url, {name: _stamp(infos[path]) for name, path in listed.items()}]
    return _copied(facts, listed, files)


def _file_system(url: str) -> tuple[AbstractFileSystem, str]:
    """(the file system of a URL of the hub or of an object store, its path there).

    The hub's are such as hf://datasets/OWNER/NAME@REVISION/FOLDER. Raises UserError for a URL that pyarrow does not
    understand.
    """
    if scheme_of(url) == HUB:
        from huggingface_hub import HfFileSystem

        files = HfFileSystem()
        files.invalidate_cache()  # what was listed before may have changed
        return files, url.partition("://")[2].rstrip("/")
    import pyarrow as pa
    import pyarrow.fs as pafs
    from fsspec.implementations.arrow import ArrowFSWrapper

    try:
        arrow_files, base = pafs.FileSystem.from_uri(url)
    except pa.ArrowInvalid as error:
        raise UserError(f"cannot use {url}: {' '.join(str(error).split())}") from None
    return ArrowFSWrapper(arrow_files), base.rstrip("/")


def _stamp(info: Mapping[str, Any]) -> list[Any]:
    """The facts that tell a file from an older or newer version of it."""
    return [info["size"], info.get("blob_id", str(info.get("mtime")))]


def _copied(facts: list[Any], listed: Mapping[str, str], files: AbstractFileSystem) -> list[Path]:
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
            with tempfile.TemporaryDirectory(dir=copy.parent) as beside:
                new = Path(beside) / "new"
                with files.open(path) as source, new.open("wb") as target:
                    shutil.copyfileobj(source, target, 1 << 20)
                os.replace(new, copy)  # atomic: another process may copy the same file
        copies.append(copy)
    return copies


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
