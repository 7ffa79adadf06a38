"""Published files, record by record, each with where it stands, for a person to look up. Memory stays flat."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from glob import glob
from pathlib import Path
from typing import Any

from evaluation.benchmark.samples import Malformed
from lrp_core.types import UserError

Record = tuple[str, Any]  # (file:line or similar, the record, or the Malformed that says why there is none)

_CHUNK = 1 << 20


def fetch(path: str, suffixes: tuple[str, ...], nested: bool = False) -> list[Path]:
    """The local files of a path, a folder, a pattern of paths, or a URL (downloaded once, cached by `datasets`).

    Of a folder, those right in it, or with `nested` those anywhere below.

    Raises UserError when there is nothing of the right kind.
    """
    if "://" in path and not path.startswith("file://"):
        from datasets import DownloadManager  # takes a second to import

        try:
            return [Path(DownloadManager().download(path))]
        except (OSError, ValueError) as error:
            raise UserError(f"cannot download {path}: {' '.join(str(error).split())}") from error
    where = Path(path.removeprefix("file://")).expanduser()
    if where.is_dir():
        files = sorted(p for p in (where.rglob("*") if nested else where.iterdir()) if p.suffix in suffixes)
    else:
        files = [where] if where.exists() else sorted(map(Path, glob(str(where))))
    if not files:
        raise UserError(f"no {' or '.join(suffixes)} file at {where}: give the path of the published data")
    return files


def checksum(files: list[Path], expected: str | None) -> str:
    """The sha256 of the files' bytes, one after the other. Raises UserError, with both sums, if another is expected."""
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
    digits = digest.hexdigest()
    if expected is not None and digits != expected.lower():
        names = ", ".join(str(file) for file in files)
        raise UserError(
            f"{names} changed: sha256 is {digits}, the config pins {expected}; check it and update `sha256`"
        )
    return digits


def lines(file: Path) -> Iterator[tuple[str, str | Malformed]]:
    """(file:line, text) of every line that is not blank."""
    with file.open("rb") as stream:
        for number, raw in enumerate(stream, start=1):
            where = f"{file.name}:{number}"
            try:
                line = raw.decode().rstrip("\r\n")
            except UnicodeDecodeError as error:
                yield where, Malformed("not UTF-8", str(error))
                continue
            if line.strip():
                yield where, line


def json_lines(file: Path) -> Iterator[Record]:
    for where, line in lines(file):
        yield where, line if isinstance(line, Malformed) else _from_json(line)


def _from_json(line: str) -> Any:
    """The value of a line, or why it has none: it is no JSON, too deep, or holds half of a character (UTF-16)."""
    try:
        value = json.loads(line)
        if "\\u" in line:
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except UnicodeEncodeError as error:
        return Malformed("not UTF-8", str(error))
    except (ValueError, RecursionError) as error:
        return Malformed("not JSON", str(error))


def tab_separated(file: Path) -> Iterator[Record]:
    for where, line in lines(file):
        yield where, line if isinstance(line, Malformed) else line.split("\t")


def json_array(file: Path, key: str) -> Iterator[Record]:
    """The entries of the array under the top-level `key` of a JSON object, without reading the whole file.

    Raises UserError when the file has no such array or breaks off inside it.
    """
    decoder, buffer, index = json.JSONDecoder(), "", 0
    with file.open(encoding="utf-8") as stream:
        while (start := _after_opening(buffer, key)) is None:
            if not (chunk := stream.read(_CHUNK)):
                raise UserError(f"{file} has no array {key!r}: it is not in the published layout")
            buffer += chunk
        buffer = buffer[start:]
        while not (rest := buffer.lstrip(" \t\r\n,")).startswith("]"):
            try:
                entry, end = decoder.raw_decode(rest)
            except json.JSONDecodeError as error:
                if not (chunk := stream.read(max(_CHUNK, len(rest)))):
                    raise UserError(f"{file} is not JSON after {key}[{index}]: {error.msg}") from None
                buffer = rest + chunk
                continue
            yield f"{file.name}:{key}[{index}]", entry
            buffer, index = rest[end:], index + 1


def _after_opening(text: str, key: str) -> int | None:
    """Where the array of `key` begins in `text`."""
    quoted = text.find(f'"{key}"')
    bracket = text.find("[", quoted) if quoted >= 0 else -1
    return bracket + 1 if bracket >= 0 else None
