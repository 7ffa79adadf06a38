"""The files of a model that decide its numbers, and their hashes."""

from __future__ import annotations

import hashlib
import json
import platform
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path

from closelook.lrp_core.opening.checkpoint import CONFIG, weight_files

LARGE_BYTES = 1 << 26  # hashes of smaller files are not kept
GGUF_SOURCE = "gguf.sha256"  # in a folder that was converted from a GGUF file, the hash of this file
SETTLED_S = 10.0  # hashes of files that changed since are not kept


def numbers_of(directory: Path) -> list[Path]:
    """The files of a model's directory that decide its numbers. Raises as `weight_files`.

    They are weights and config, and the settings of generation that say with which tokens a decoder begins; of a model
    that was converted from a GGUF file, the hash of this file.
    """
    if (directory / GGUF_SOURCE).is_file():
        return [directory / GGUF_SOURCE]
    files = [directory / CONFIG, *weight_files(directory)]
    generation = directory / "generation_config.json"
    config = json.loads((directory / CONFIG).read_text(encoding="utf-8"))
    if config.get("is_encoder_decoder") and generation.exists():
        files.append(generation)
    return sorted(files)


def hash_files(paths: Iterable[Path]) -> str:
    """A hash of the files' names and contents, in this order."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{path.name}:{hash_file(path)};".encode())
    return digest.hexdigest()


def hash_file(path: Path) -> str:
    """The SHA-256 of the file's content."""
    known = path.stat()
    return _hash_file(path.resolve(), (known.st_size, known.st_mtime_ns, known.st_ctime_ns, known.st_ino))


@cache
def _hash_file(path: Path, stamp: tuple[int, ...]) -> str:
    """A hash of the file, read once on a machine while its `stamp` (size, times, inode) stays the same.

    Every stage and every worker asks for the hash of weights, so it is kept beside the hub's files.
    """
    from huggingface_hub import constants

    name = hashlib.sha256(f"{platform.node()} {path} {stamp}".encode()).hexdigest()
    kept = Path(constants.HF_HOME) / "closelook" / "hashes" / name
    with suppress(OSError):
        digest = kept.read_text(encoding="ascii")
        if len(digest) == len(name):  # a file that another process is writing is shorter
            return digest
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    # A file may change again within a tick of the clock that stamps it: of such a file nothing is kept.
    if path.stat().st_size > LARGE_BYTES and time.time() - path.stat().st_ctime > SETTLED_S:
        with suppress(OSError):
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(digest, encoding="ascii")
    return digest
