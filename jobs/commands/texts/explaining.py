"""`closelook explain-file`: explains every text of a file as tidy rows, and continues where it was interrupted."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from jobs.commands.progress import shown
from jobs.commands.terminal import complain, say
from jobs.commands.texts.content import Content, Unexplained, content_of
from jobs.commands.texts.parts import Folder, Job, Part, computed, parts_of
from jobs.commands.texts.whole import Output, join, key_of_whole
from jobs.typed import every_typed
from lrp_core.records.types import Request, UserError

MOST_TOLD = 5  # rows without an explanation that are printed one by one


def explain_file(file: str, to: Path, job: Job, columns: Mapping[str, str], workers: int) -> None:
    """Explain every text of `file`, write the rows to `to`, and print a summary.

    `columns` gives the file's name for known columns. Raises UserError for a file, model or method that does not fit,
    if another process is writing `to`, and if `to` holds rows of other texts or methods; WorkerDied if a process ended.
    """
    output = Output(to)
    content = content_of(file, columns)
    opened = job.open()
    if opened.resolved.kind.images:
        raise UserError(f"{opened.id} reads images: explain-file reads texts")
    for method in every_typed(job.methods):
        method.require(opened.resolved.family)
        if job.asking.explanation is not None:
            method.check(Request(method.name, job.asking.explanation, method.embeddings[0]))
    parts = parts_of(job, opened, list(content.names))
    kept = output.key()
    if kept == key_of_whole(content, parts):
        return say(f"nothing to do: {to} and {output.tokens} hold all rows already")
    if to.exists():
        raise UserError(f"{to} holds rows of other texts, methods or models: name another file or remove it")
    folder = Folder(output.parts)
    with _alone(output):
        missing = [part for part in parts if not folder.words(part).exists()]
        _compute(job, content, parts, missing, folder, workers)
        unexplained = join(output, folder, content, parts)
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
    job: Job, content: Content, parts: Sequence[Part], missing: Sequence[Part], folder: Folder, workers: int
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

        computed(job, job.open(), missing, folder, workers, tell)


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
