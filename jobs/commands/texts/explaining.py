"""`closelook explain-file`: a file of texts in, tidy rows out; what was computed before is not computed again."""

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

MOST_TOLD = 5  # rows without an explanation that are told of one by one


def explain_file(file: str, to: Path, job: Job, columns: Mapping[str, str], workers: int) -> None:
    """Explain every text of `file` and write `to`, with what it says on the screen.

    Raises UserError for a file, model or method that does not fit, where another process writes `to`, and where `to`
    holds something else; WorkerDied where a process ended.
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
        return say(f"nothing to do: {to} and {output.tokens} have it all")
    if to.exists():
        raise UserError(f"{to} is there already, of other texts, methods or models: name another file or remove it")
    folder = Folder(output.parts)
    with _alone(output):
        missing = [part for part in parts if not folder.words(part).exists()]
        _compute(job, content, parts, missing, folder, workers)
        unexplained = join(output, folder, content, parts)
    shutil.rmtree(output.parts)
    _tell(output, content, unexplained)


@contextmanager
def _alone(output: Output) -> Iterator[None]:
    """Inside, no other process computes parts of the same output. Raises UserError where one does."""
    output.parts.mkdir(exist_ok=True)
    with (output.parts / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"another process writes {output.path}: wait for it") from None
        yield


def _compute(
    job: Job, content: Content, parts: Sequence[Part], missing: Sequence[Part], folder: Folder, workers: int
) -> None:
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
    """Say how the rows of the file are accounted for, and where the results are."""
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
