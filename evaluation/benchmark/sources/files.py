"""Published files, record by record, each with where it stands, for a person to look up."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Iterator, Sequence
from glob import glob
from pathlib import Path
from typing import Any

from evaluation.benchmark.samples import Malformed
from lrp_core.types import UserError

Record = tuple[str, Any]  # (file:line or similar, the record, or the Malformed that says why there is none)


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
            hashlib.file_digest(stream, lambda: digest)
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


def csv_rows(file: Path, encoding: str = "utf-8") -> Iterator[Record]:
    """(file:line, its fields) of every row of CSV that is not blank; a row that spans lines stands at its first."""
    with file.open(encoding=encoding, errors="surrogateescape", newline="") as stream:
        reader = csv.reader(stream, strict=True)
        while True:
            where = f"{file.name}:{reader.line_num + 1}"
            try:
                row = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield where, Malformed("not CSV", str(error))
                continue
            if row:
                yield where, row


def named(names: Sequence[str], row: Sequence[str]) -> dict[str, str] | Malformed:
    """The fields of a row by the names of their columns."""
    if any("\udc80" <= character <= "\udcff" for character in "".join(row)):
        return Malformed("not UTF-8")  # bytes that the decoder escaped
    return dict(zip(names, row, strict=True))


def json_array(file: Path, key: str) -> Iterator[Record]:
    """The entries of the array under the top-level `key` of a JSON object.

    Raises UserError when the file has no such array or is not JSON.
    """
    try:
        content = json.loads(file.read_bytes())
    except ValueError as error:
        raise UserError(f"{file} is not JSON: {error}") from None
    array = content.get(key) if isinstance(content, dict) else None
    if not isinstance(array, list):
        raise UserError(f"{file} has no array {key!r}: it is not in the published layout")
    for index, entry in enumerate(array):
        yield f"{file.name}:{key}[{index}]", entry
