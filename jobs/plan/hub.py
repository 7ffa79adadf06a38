"""Files of models, on the hub and in directories: reaching them, and hashes that say which they are."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.store.retry import is_passing

if TYPE_CHECKING:
    from jobs.config import ModelConfig

PATIENCE_S = 5.0  # with each step of the question whether the hub answers


class ModelUnavailable(RuntimeError):
    """The model may exist but cannot be reached or read now: its own cells fail, the others go on."""


@cache
def hub_reachable() -> bool:
    """True where the hub answers anything, through a proxy where there is one.

    It is asked once by a process, for all models: its client tries for half a minute with each before it gives up.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=PATIENCE_S, follow_redirects=False)
    except Exception:  # whatever stands in the way: no route, a proxy that refuses, a client told to stay offline
        return False
    return True


def commit_of(model: ModelConfig, location: str) -> str:
    """The commit of the hub whose config was just read, by its place in the cache."""
    from transformers.utils.hub import cached_file, extract_commit_hash

    path = cached_file(location, "config.json", revision=model.revision, local_files_only=True)
    commit = extract_commit_hash(path, None)
    if commit is None:
        raise ModelUnavailable(f"model {model.name}: the hub's cache does not say which commit of {location} {path} is")
    return commit


def fetch_weights(location: str, revision: str | None) -> None:
    """Bring weights into the hub's cache. Raises its errors: transformers takes a refused file for a missing one."""
    if fetch(location, "model.safetensors", revision) is not None:
        return
    index = fetch(location, "model.safetensors.index.json", revision)
    if index is not None:
        files = json.loads(Path(index).read_bytes())["weight_map"].values()
        for name in sorted(set(files)):
            fetch(location, name, revision)


def fetch(location: str, name: str, revision: str | None = None) -> str | None:
    """The path of a file of the hub in its cache; None where the hub, or offline the cache, lacks it."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    try:
        return hf_hub_download(location, name, revision=revision)
    except EntryNotFoundError as error:
        if is_passing(error):
            raise
        return None


def hash_files(paths: Iterable[Path]) -> str:
    """A hash of the files' names and contents, in this order."""
    digest = hashlib.sha256()
    for path in paths:
        known = path.stat()
        stamp = (known.st_size, known.st_mtime_ns, known.st_ctime_ns, known.st_ino)
        digest.update(f"{path.name}:{_hash_file(path.resolve(), stamp)};".encode())
    return digest.hexdigest()


@cache
def _hash_file(path: Path, stamp: tuple[int, ...]) -> str:
    """Read once by a process, and again when its size, times or inode are others: every stage asks for weights."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
