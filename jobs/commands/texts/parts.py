"""Parts of a file's texts: each is computed once, written in one step, and found again by its key."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch

from closelook.evaluation.schema import TOKENS, WORDS, titled
from closelook.jobs.commands.options import ModelOptions
from closelook.jobs.commands.questions.opened import Opened
from closelook.jobs.commands.texts.computing import Asking, Computed, Text, compute
from closelook.jobs.plan.models import tokenizers_key
from closelook.jobs.store import TEMPORARY, key_of, short
from closelook.methods import parse_methods

VERSION = 2  # to be raised when a change of code gives the same texts other rows
PART_TEXTS = 512  # texts of a part; a killed process loses no more than one part
WORD_ROWS, TOKEN_ROWS, _ERRORS = "words.parquet", "tokens.parquet", "errors.json"  # ends of names of a part's files
_WATCH_S = 1.0  # seconds between looks whether the parent process is alive


class WorkerDied(RuntimeError):
    """A process ended in the middle of a part."""


@dataclass(frozen=True)
class Job:
    """A model and the question about every text, in a form that can be sent to worker processes."""

    of: ModelOptions
    methods: str  # as typed on the command line
    asking: Asking

    def open(self, device: str | None = None) -> Opened:
        """The model, on `device` if given, without its weights yet. Raises as :func:`open_model` does."""
        return (self.of if device is None else replace(self.of, device=device)).open()


@dataclass(frozen=True)
class Part:
    """Texts that are computed and written together."""

    key: str  # a hash of everything that its numbers depend on
    texts: tuple[Text, ...]


@dataclass(frozen=True)
class Folder:
    """The folder of finished parts, beside the file that they will be joined to."""

    path: Path

    def file(self, part: Part, name: str) -> Path:
        """The part's file of rows by word (WORD_ROWS) or by token, or of errors. The first is written last."""
        return self.path / f"{short(part.key)}.{name}"

    def is_done(self, part: Part) -> bool:
        """True if all files of the part exist."""
        return self.file(part, WORD_ROWS).exists()

    def errors(self, part: Part) -> dict[int, str]:
        """For texts of a finished part without an explanation, the reason, by index in the part."""
        return {int(at): reason for at, reason in json.loads(self.file(part, _ERRORS).read_text()).items()}

    def commit(self, part: Part, result: Computed) -> None:
        """Write the files of a part, the one that marks it as done last."""
        words, tokens = result.tables
        number = str(os.getpid())  # for a second, a worker of a killed command may still write the same part
        with replacing(self.file(part, _ERRORS), number) as file:
            file.write_text(json.dumps(result.errors))
        for name, rows in ((TOKEN_ROWS, tokens), (WORD_ROWS, words)):
            with replacing(self.file(part, name), number) as file:
                pq.write_table(rows, file)


@contextmanager
def replacing(path: Path, suffix: str = "unfinished") -> Iterator[Path]:
    """Yield the path of a temporary file with this suffix, which is renamed to `path` at the end of the block.

    If the block raises an error, the file is removed. One that a killed process leaves is replaced by the next one of
    this name; in a root, `closelook gc` removes it, too.
    """
    unfinished = path.with_name(f"{TEMPORARY}{path.name}.{suffix}")
    try:
        yield unfinished
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    os.replace(unfinished, path)


def parts_of(job: Job, opened: Opened, texts: Sequence[Text]) -> list[Part]:
    """The texts in parts of PART_TEXTS, in their order, each with its key."""
    decides: dict[str, Any] = {
        "version": VERSION,
        "schemas": [titled(WORDS), titled(TOKENS)],
        "model": opened.resolved.identity,
        "tokenizer": tokenizers_key(opened.tokenizer, opened.decoder_tokenizer),
        "dtype": job.of.dtype,
        "methods": [method.key() for method in parse_methods(job.methods)],
        "asking": asdict(job.asking),
    }
    parts = []
    for start in range(0, len(texts), PART_TEXTS):
        some = tuple(texts[start : start + PART_TEXTS])
        parts.append(Part(key_of(**decides, texts=some), some))
    return parts


def computed(
    job: Job, opened: Opened, parts: Sequence[Part], folder: Folder, workers: int, tell: Callable[[int], None]
) -> None:
    """Compute and write parts, in this process or in several; `tell` is called with the number of texts just explained.

    Raises WorkerDied if a process ended, and the errors of computing.
    """
    workers = min(workers, len(parts))
    if workers <= 1:
        methods = parse_methods(job.methods)
        with opened.in_use():
            for part in parts:
                folder.commit(part, compute(opened, methods, part.texts, job.asking, tell))
        return
    for part in _in_processes(job, parts, folder, workers):
        tell(len(part.texts))


def _in_processes(job: Job, parts: Sequence[Part], folder: Folder, workers: int) -> Iterator[Part]:
    """Yield parts as worker processes, each with the model open, have written them. Raises WorkerDied."""
    context = get_context("spawn")
    started = context.Value("i", 0)
    threads = max(1, torch.get_num_threads() // workers)
    pool = ProcessPoolExecutor(workers, context, _begin, (job, folder, threads, started))
    try:
        waiting = {pool.submit(_one, part): part for part in parts}
        for future in as_completed(waiting):
            future.result()
            yield waiting[future]
    except BrokenProcessPool:
        raise WorkerDied("a process ended in the middle of a part") from None
    finally:
        pool.shutdown(cancel_futures=True)


_process: dict[str, Any] = {}  # in a worker process: the arguments of `_begin`, and the open model


def _begin(job: Job, folder: Folder, threads: int, started: Any) -> None:
    """Start a worker process: open the model, on a GPU of its own if there are several, and watch the parent process.

    `started` is a shared counter of workers.
    """
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    torch.set_num_threads(threads)
    with started.get_lock():
        number = started.value
        started.value += 1
    device = job.of.device
    if device.startswith("cuda") and torch.cuda.device_count() > 1:
        device = f"cuda:{number % torch.cuda.device_count()}"
    _process.update(job=job, folder=folder, opened=job.open(device), methods=parse_methods(job.methods))


def _one(part: Part) -> None:
    """Compute and write a part in a worker process."""
    asking = _process["job"].asking
    result = compute(_process["opened"], _process["methods"], part.texts, asking, lambda _: None)
    _process["folder"].commit(part, result)


def _end_with(parent: int) -> None:
    """End this process once its parent process has ended, which may be killed and then cannot end its workers."""
    while os.getppid() == parent:
        time.sleep(_WATCH_S)
    os._exit(1)
