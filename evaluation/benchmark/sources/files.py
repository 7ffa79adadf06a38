"""Reads files record by record; every record has its place (file and line or index), for a person to look up.

Rows with named columns come from JSON Lines, a JSON list, CSV of any usual separator and Parquet, compressed or not.
"""

from __future__ import annotations

import csv
import hashlib
import json
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from glob import glob
from io import BufferedReader, TextIOWrapper
from itertools import chain
from pathlib import Path
from typing import IO, Any, AnyStr, BinaryIO, cast

from closelook.evaluation.benchmark.samples import Malformed
from closelook.evaluation.benchmark.sources.remote import download, scheme_of
from closelook.lrp_core.records.types import UserError

Record = tuple[str, Any]  # (file:line or similar, the record, or the Malformed that says why there is none)
_ANOTHER = "save it as UTF-8; explain-file reads others by --encoding, such as latin-1"
#: The ends of names of compressed files, and pyarrow's codecs for them.
COMPRESSED = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}

LONGEST = 64 << 20  # bytes of a line, or characters of CSV: a file without line ends must not fill the memory

csv.field_size_limit(LONGEST)  # of a cell; by default, one beyond 131,072 characters ends at a line's end


def fetch(path: str, suffixes: tuple[str, ...], nested: bool = False) -> list[Path]:
    """The local files of `path`: a file, a folder, a pattern of paths, or a URL, whose files are downloaded.

    Of a folder, the files with one of `suffixes` that lie directly in it, or with `nested` at any depth.

    Raises UserError if there is no such file, and OSError if a URL cannot be reached now.
    """
    if scheme_of(path):
        return download(path, suffixes, nested)
    where = Path(path.removeprefix("file://")).expanduser()
    if where.is_dir():
        files = sorted(p for p in (where.rglob("*") if nested else where.iterdir()) if p.name.endswith(suffixes))
    else:
        files = [where] if where.exists() else sorted(map(Path, glob(str(where))))
    if not files:
        kinds = (suffix for suffix in suffixes if suffix not in COMPRESSED and suffix.count(".") == 1)
        raise UserError(f"no {' or '.join(kinds)} file at {where}: give the path of a file, a folder or a pattern")
    return files


def checksum(files: list[Path], expected: str | None) -> str:
    """The sha256, in hex, of the files' bytes one file after the other. Raises UserError if it is not `expected`."""
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            hashlib.file_digest(stream, lambda: digest)
    digits = digest.hexdigest()
    if expected is not None and digits != expected.lower():
        names = ", ".join(str(file) for file in files)
        raise UserError(
            f"{names} changed: the sha256 is {digits}, not {expected} as in the config; check it and update `sha256`"
        )
    return digits


@contextmanager
def readable(file: Path) -> Iterator[BinaryIO]:
    """The bytes of a file, decompressed as its name says. Raises UserError for one that cannot be decompressed."""
    codec = COMPRESSED.get(file.suffix)
    if codec is None:
        with file.open("rb") as stream:
            yield stream
        return
    import pyarrow as pa

    try:
        with pa.input_stream(str(file), compression=codec) as unpacked:
            yield cast(BinaryIO, BufferedReader(unpacked))
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"{file} cannot be read: {' '.join(str(error).split())}") from None


def _bounded(stream: IO[AnyStr], file: Path) -> Iterator[AnyStr]:
    """The lines of a stream. Raises UserError for one of LONGEST or more."""
    while line := stream.readline(LONGEST):
        if len(line) == LONGEST:
            raise UserError(f"{file} has a line of {LONGEST >> 20} MiB or more: it is not a file of rows")
        yield line


def lines(file: Path) -> Iterator[tuple[str, str | Malformed]]:
    """(file:line, text) of every line that is not blank; Malformed for one that is not UTF-8."""
    with readable(file) as stream:
        for number, raw in enumerate(_bounded(stream, file), start=1):
            where = f"{file.name}:{number}"
            content = raw.removeprefix(BOM_UTF8) if number == 1 else raw  # some editors begin files so
            try:
                line = content.decode().rstrip("\r\n")
            except UnicodeDecodeError as error:
                yield where, Malformed("not UTF-8", f"{error}: {_ANOTHER}")
                continue
            if line.strip():
                yield where, line


def json_lines(file: Path) -> Iterator[Record]:
    """The JSON value of every line that is not blank, or Malformed."""
    for where, line in lines(file):
        yield where, line if isinstance(line, Malformed) else _from_json(line)


def _from_json(line: str) -> Any:
    """The value of a line; Malformed where it is no JSON, nested too deeply, or holds half of a character (UTF-16)."""
    try:
        value = json.loads(line)
        return encodable(value) if "\\u" in line else value
    except (ValueError, RecursionError) as error:
        return Malformed("not JSON", str(error))


def encodable(value: Any) -> Any:
    """`value`; Malformed where a text in it holds half of a character: JSON can escape one half of a UTF-16 pair."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        return Malformed("not UTF-8", str(error))
    return value


def tab_separated(file: Path) -> Iterator[Record]:
    """The fields of every line that is not blank, as a list of texts."""
    for where, line in lines(file):
        yield where, line if isinstance(line, Malformed) else line.split("\t")


def csv_rows(file: Path, separator: str = ",") -> Iterator[Record]:
    """(file:line, its fields) of every row of CSV that is not blank; a row that spans lines stands at its first."""
    with readable(file) as content:
        text = TextIOWrapper(content, "utf-8-sig", "surrogateescape", "")  # without the mark of some editors
        reader = csv.reader(_bounded(text, file), delimiter=separator, strict=True)
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
    """The fields of `row` by the `names` of their columns; Malformed where the file had bytes that are not UTF-8."""
    if any("\udc80" <= character <= "\udcff" for character in "".join(row)):
        return Malformed("not UTF-8", _ANOTHER)  # bytes that the decoder escaped
    return dict(zip(names, row, strict=True))


def json_array(file: Path, key: str) -> Iterator[Record]:
    """The entries of the array under the top-level `key` of a JSON object.

    Raises UserError when the file has no such array or is not JSON.
    """
    advice = "so it is not a file of this source as published: give that one"
    try:
        content = json.loads(file.read_bytes())
    except ValueError as error:
        raise UserError(f"{file} is not JSON ({error}), {advice}") from None
    array = content.get(key) if isinstance(content, dict) else None
    if not isinstance(array, list):
        raise UserError(f"{file} has no array {key!r}, {advice}")
    for index, entry in enumerate(array):
        yield f"{file.name}:{key}[{index}]", entry


SEPARATORS = (",", ";", "\t")


def separated(file: Path) -> Iterator[Record]:
    """The rows of a CSV file with a header, as (file:line, {column: value}); a row of another length is Malformed."""
    first = next((line for _, line in lines(file) if isinstance(line, str)), "")
    return headed(csv_rows(file, _separator(first)), file)


def headed(rows: Iterator[Record], file: Path, strip: bool = False) -> Iterator[Record]:
    """Rows of fields, of which the first is the header, by the names of their columns.

    `strip` removes blanks around these names. A row of another length is Malformed. Raises UserError for a header that
    names a column twice or is not UTF-8.
    """
    header: list[str] | None = None
    for where, row in rows:
        if isinstance(row, Malformed):
            yield where, row
        elif header is None:
            header = [name.strip() for name in row] if strip else list(row)
            if isinstance(named(header, row), Malformed):
                raise UserError(f"{file} is not UTF-8: {_ANOTHER}")
            if len(set(header)) < len(header):
                names = ", ".join(header)
                raise UserError(f"{file} has two columns of one name: {names}; rename one, or add a line of names")
        elif len(row) != len(header):
            yield where, Malformed("not as many fields as the header has", f"{len(row)} of {len(header)}")
        else:
            yield where, named(header, row)


def _separator(header: str) -> str:
    """The separator that stands in the header most often, outside of quotation marks; the first of equal ones."""
    # Every second part between quotation marks is outside of them.
    unquoted = "".join(header.split('"')[::2])
    return max(SEPARATORS, key=unquoted.count)


def json_rows(file: Path) -> Iterator[Record]:
    """The entries of a JSON list, or of JSON Lines the object of each line.

    Raises UserError for a file that begins with "[" and is not JSON.
    """
    with readable(file) as stream:
        content = stream.read().removeprefix(BOM_UTF8)
    if not content.lstrip().startswith(b"["):
        yield from json_lines(file)
        return
    try:
        entries = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file} is not JSON: {error}") from None
    escaped = b"\\u" in content
    for index, entry in enumerate(entries):
        yield f"{file.name}[{index}]", encodable(entry) if escaped else entry


def parquet(file: Path) -> Iterator[Record]:
    """The rows, counted from 1. Raises UserError for a file that is not Parquet or is damaged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        batches = pq.ParquetFile(file).iter_batches(batch_size=1024)
        rows: Iterator[Any] = chain.from_iterable(batch.to_pylist() for batch in batches)
        for number, row in enumerate(rows, start=1):
            yield f"{file.name}:{number}", row
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"{file} is not Parquet that can be read: {' '.join(str(error).split())}") from None


_TEXTS: dict[str, Callable[[Path], Iterator[Record]]] = {
    ".jsonl": json_lines,
    ".json": json_rows,
    ".csv": separated,
    ".tsv": separated,
}
#: The reader of each kind of file, by the end of its name.
READERS = {kind + packed: reader for kind, reader in _TEXTS.items() for packed in ("", *COMPRESSED)}
READERS |= {".parquet": parquet}
#: The files that are read of a folder: JSON there may be the configuration of a model, and is read where it is named.
IN_FOLDERS = tuple(end for end in READERS if not end.startswith(".json") or end.startswith(".jsonl"))
KINDS = ", ".join((*_TEXTS, ".parquet"))


def records(file: Path) -> Iterator[Record]:
    """The rows of a file, each with its line (in Parquet its row, in a JSON list its index).

    Raises UserError for a file of another kind, and for one that cannot be decompressed.
    """
    reader = next((READERS[end] for end in READERS if file.name.endswith(end)), None)
    if reader is None:
        compressed = ", ".join(COMPRESSED)
        raise UserError(
            f"cannot read {file}: its name must end in one of {KINDS}; all but Parquet may be compressed ({compressed})"
        )
    return reader(file)
