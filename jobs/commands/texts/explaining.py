"""`closelook explain-file`: explains every text of a file as tidy rows, and continues where it was interrupted.

Finished parts are joined into the output files: rows by word, rows by token, and a list of unexplained rows.
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from closelook.evaluation.benchmark.sources.files import UTF_8
from closelook.evaluation.explained.rows import Name
from closelook.evaluation.report.spreadsheet import csv_text
from closelook.evaluation.schema import TOKENS, WORDS
from closelook.jobs.commands.questions.opened import Opened
from closelook.jobs.commands.texts.computing import Content, Unexplained, content_of
from closelook.jobs.commands.texts.parts import TOKEN_ROWS, WORD_ROWS, Folder, Job, Part, computed, parts_of, replacing
from closelook.jobs.store import key_of
from closelook.lrp_core.records.types import Request, UserError
from closelook.methods import parse_methods
from closelook.progress import shown
from closelook.terminal import complain, say

_KEY = b"closelook.key"  # in a file's metadata: the hash of everything that its rows depend on
MOST_TOLD = 5  # rows without an explanation that are printed one by one


@dataclass(frozen=True)
class Output:
    """The output files of `closelook explain-file`."""

    path: Path  # rows by word

    def __post_init__(self) -> None:
        """Raise UserError unless `path` ends in .parquet and its folder exists."""
        if self.path.suffix != ".parquet":
            raise UserError(f"rows are written as Parquet: name the file {self.path.stem or 'explained'}.parquet")
        if not self.path.absolute().parent.is_dir():
            raise UserError(f"there is no folder {self.path.absolute().parent}: make it, or name another file")

    @property
    def tokens(self) -> Path:
        """The file of rows by token."""
        return self.path.with_suffix(".tokens.parquet")

    @property
    def unexplained(self) -> Path:
        """The list of rows without an explanation, which exists only if there are any."""
        return self.path.with_suffix(".unexplained.csv")

    @property
    def parts(self) -> Path:
        """The folder of finished parts, which is removed once they are joined."""
        return self.path.with_suffix(".parts")

    def holds(self, key: str) -> bool:
        """True if the files of rows exist, and the rows by word are those of this key."""
        return self.tokens.exists() and _key_in(self.path) == key.encode()

    def check_free(self) -> None:
        """Raise UserError if a file of rows by word is there, or rows by token that are not of this command."""
        if self.path.exists():
            raise UserError(f"{self.path} holds rows of other texts, methods or models: name another file or remove it")
        if self.tokens.exists() and _key_in(self.tokens) is None:
            raise UserError(f"{self.tokens}, for the rows by token, holds something else: name another file")


def _key_in(path: Path) -> bytes | None:
    """The key in the metadata of a Parquet file of this command; None for another file, or none."""
    try:
        return (pq.read_schema(path).metadata or {}).get(_KEY)
    except (FileNotFoundError, pa.ArrowException):
        return None


def key_of_whole(content: Content, parts: Sequence[Part]) -> str:
    """The key of the joined parts: a hash of the parts' keys and of the file's rows that have their texts."""
    names = [[list(name) for name in names] for names in content.names.values()]
    bad = [[*row.name, row.reason] for row in content.bad]
    return key_of(parts=[part.key for part in parts], names=names, bad=bad)


def join(output: Output, folder: Folder, content: Content, parts: Sequence[Part], key: str) -> list[Unexplained]:
    """Join the parts into the output files of this `key`, each written in one step.

    Returns the rows without an explanation.
    """
    unexplained = [*content.bad]
    for part in parts:
        for at, reason in folder.errors(part).items():
            text = part.texts[at]
            unexplained += [Unexplained(name, content.places[text], reason) for name in content.names[text]]
    unexplained.sort(key=lambda row: row.name.row or 0)
    _write_list(output.unexplained, unexplained)
    names = [[content.names[text] for text in part.texts] for part in parts]
    for path, schema, rows in ((output.tokens, TOKENS, TOKEN_ROWS), (output.path, WORDS, WORD_ROWS)):
        files = (folder.file(part, rows) for part in parts)
        _write(path, schema, key, map(_named, map(pq.read_table, files), names))
    return unexplained


def _write(path: Path, schema: pa.Schema, key: str, tables: Iterable[pa.Table]) -> None:
    """Write the tables to the Parquet file `path`, in one step, with `key` in its metadata."""
    schema = schema.with_metadata({**schema.metadata, _KEY: key.encode()})
    with replacing(path) as unfinished, pq.ParquetWriter(unfinished, schema) as writer:
        for table in tables:
            writer.write_table(table.cast(schema))


def _named(table: pa.Table, names: Sequence[Sequence[Name]]) -> pa.Table:
    """The rows of a part, repeated for every row of the user's file with the same text, with its `id` and `row`.

    In `table`, the column `row` holds the index of the text, ascending; `names` are the file's rows with each text.
    """
    number = table["row"].to_numpy()
    edges = np.searchsorted(number, np.arange(len(names) + 1))
    taken, of_name = [np.zeros(0, np.int64)], list[Name]()
    lengths = []
    for at, of_text in enumerate(names):
        rows = np.arange(edges[at], edges[at + 1])
        for name in of_text if len(rows) else ():
            taken.append(rows)
            of_name.append(name)
            lengths.append(len(rows))
    which = pa.array(np.repeat(np.arange(len(of_name)), lengths))
    table = table.take(pa.array(np.concatenate(taken)))
    for field, values in (("id", [name.id for name in of_name]), ("row", [name.row for name in of_name])):
        index = table.schema.get_field_index(field)
        column = pa.array(values, table.schema.field(field).type).take(which)
        table = table.set_column(index, table.schema.field(field), column)
    return table


def _write_list(path: Path, rows: Sequence[Unexplained]) -> None:
    """Write the rows without an explanation as CSV; with none, remove an old list."""
    if not rows:
        path.unlink(missing_ok=True)
        return
    cells = [[row.name.row, row.name.id, row.where, row.reason] for row in rows]
    path.write_text(csv_text([["row", "id", "where", "reason"], *cells]), encoding="utf-8", newline="")


def explain_file(
    file: str, to: Path, job: Job, columns: Mapping[str, str], workers: int, encoding: str = UTF_8
) -> None:
    """Explain every text of `file`, which is in `encoding`, write the rows to `to`, and print a summary.

    `columns` gives the file's name for known columns. Raises UserError for a file, model or method that does not fit,
    if another process is writing `to`, and if `to` holds rows of other texts or methods; WorkerDied if a process ended.
    """
    output = Output(to)
    content = content_of(file, columns, encoding)
    opened = job.open()
    if opened.resolved.kind.images:
        raise UserError(f"{opened.id} reads images: explain-file reads texts")
    for method in parse_methods(job.methods):
        method.require(opened.resolved.family)
        if job.asking.explanation is not None:
            method.check(Request(method.name, job.asking.explanation, method.embeddings[0]))
    parts = parts_of(job, opened, list(content.names))
    key = key_of_whole(content, parts)
    if output.holds(key):
        return say(f"nothing to do: {to} and {output.tokens} hold all rows already")
    output.check_free()
    folder = Folder(output.parts)
    with _alone(output):
        missing = [part for part in parts if not folder.is_done(part)]
        _compute(job, opened, parts, missing, folder, workers)
        unexplained = join(output, folder, content, parts, key)
    shutil.rmtree(output.parts)
    _tell(output, content, unexplained)


@contextmanager
def _alone(output: Output) -> Iterator[None]:
    """Hold the output's lock inside the block, against other processes. Raises UserError if one of them holds it."""
    output.parts.mkdir(exist_ok=True)
    with (output.parts / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"another process is writing {output.path}: wait until it has ended") from None
        yield


def _compute(
    job: Job, opened: Opened, parts: Sequence[Part], missing: Sequence[Part], folder: Folder, workers: int
) -> None:
    """Compute the missing parts, with a bar of progress over all."""
    total = sum(len(part.texts) for part in parts)
    done = total - sum(len(part.texts) for part in missing)
    if done:
        say(f"{done:,} of {total:,} texts were explained before")
    if not missing:
        return
    with shown() as bar:

        def tell(more: int) -> None:
            nonlocal done
            done += more
            bar("texts", done, total)

        computed(job, opened, missing, folder, workers, tell)


def _tell(output: Output, content: Content, unexplained: Sequence[Unexplained]) -> None:
    """Print how many rows were explained, repeated or not explained, the first reasons, and the files written."""
    without = {row.name for row in unexplained}
    texts = sum(any(name not in without for name in names) for names in content.names.values())
    repeated = content.rows - len(without) - texts
    counts = f"{content.rows:,} rows: {texts:,} texts explained"
    counts += f" + {repeated:,} of the same content" if repeated else ""
    say(counts + f" + {len(without):,} without an explanation")
    for row in unexplained[:MOST_TOLD]:
        complain(f"  {row.where}: {row.reason}")
    if len(unexplained) > MOST_TOLD:
        complain(f"  and {len(unexplained) - MOST_TOLD:,} more, in {output.unexplained}")
    say(f"written to {output.path} (by word) and {output.tokens} (by token)")
