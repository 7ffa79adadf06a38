"""Records the progress of a stage from the reports of workers, on the screen and in a log.

The log is written as files of many lines, since object stores cannot append to a file.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from closelook.jobs.cluster.reports import Report
from closelook.jobs.secrets import without_secrets
from closelook.jobs.store import Store

LOG_EVERY_S = 120.0
LINE_EVERY_S = 60.0  # seconds between lines of progress if there is no terminal
LOADING = "loading, or computing its first unit"  # shown until the first unit is done


class Progress:
    """The display of every model's rows, tokens per second and time left. Thread-safe: models report from threads."""

    def __init__(
        self,
        rows: dict[str, int],
        console: Console | None = None,
        stage: str = "attribute",
        unit: str = "rows",
        slots: str = "CPUs",
    ) -> None:
        """`rows` holds the number of rows to compute by model.

        `stage` and `unit` are the words for the computation and for a row; `slots` is what waiting models wait for.
        """
        self._stage, self._unit, self._waiting = stage, unit, f"waiting for {slots}"
        self._ended: set[str] = set()
        self._stopped = threading.Event()
        self._beating = threading.Thread(target=self._beat, daemon=True, name="closelook-progress")
        self._console = console or Console(stderr=True)
        self._lock = threading.Lock()
        self._totals = dict(rows)
        self._done = dict.fromkeys(rows, 0)
        self._tokens = dict.fromkeys(rows, 0)
        self._since: dict[str, float] = {}
        self._last_line = time.monotonic()
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]}"),
            TimeRemainingColumn(),
        )
        self._bars = Bars(*columns, console=self._console, transient=True, disable=not self._console.is_terminal)
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Progress:
        self._bars.start()
        for model, total in self._totals.items():
            self._tasks[model] = self._bars.add_task(model, total=total, speed=self._waiting, start=False)
        if not self._console.is_terminal:
            self._beating.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        if self._beating.is_alive():
            self._beating.join()
        self._bars.stop()

    def begin(self, model: str) -> None:
        """Show that the model's workers are being started."""
        with self._lock:
            self._since[model] = time.monotonic()
            self._bars.start_task(self._tasks[model])
            self._bars.update(self._tasks[model], speed=LOADING)

    def end(self, model: str) -> None:
        """Show the model no more, as its workers have ended."""
        with self._lock:
            self._ended.add(model)

    def advance(self, model: str, rows: int, tokens: int) -> None:
        """Count `rows` more rows of the model, with `tokens` tokens, as committed."""
        with self._lock:
            self._done[model] += rows
            self._tokens[model] += tokens
            self._bars.update(self._tasks[model], advance=rows, speed=f"{self._speed(model):,.0f} tokens/s")
            self._tell()

    def _beat(self) -> None:
        """Print lines of progress until the end, in a thread of its own, even if no unit ends."""
        while not self._stopped.wait(max(LINE_EVERY_S, 0.01)):
            with self._lock:
                self._tell()

    def _tell(self) -> None:
        """Print the progress line if it is due. The caller holds the lock."""
        if self._console.is_terminal or time.monotonic() - self._last_line < LINE_EVERY_S:
            return
        self._last_line = time.monotonic()
        lines = [self._line(name) for name in self._totals if name not in self._ended]
        if lines:
            self._console.print(f"{self._stage}: {'; '.join(lines)}", highlight=False, soft_wrap=True)

    def _speed(self, model: str) -> float:
        """Tokens per second since the model's workers were started."""
        return self._tokens[model] / max(time.monotonic() - self._since[model], 1e-9)

    def _line(self, model: str) -> str:
        """The progress of a model in words."""
        if model not in self._since:
            return f"{model} {self._waiting}"
        done, total = self._done[model], self._totals[model]
        elapsed_s = time.monotonic() - self._since[model]
        if not done:
            return f"{model} {LOADING}, since {elapsed_s:.0f} s, {total} {self._unit} to do"
        left = f", {elapsed_s / done * (total - done):.0f} s left" if 0 < done < total else ""
        return f"{model} {done}/{total} {self._unit}, {self._speed(model):,.0f} tokens/s{left}"


class Recorder:
    """Writes the log of a stage. Thread-safe, since each model reports from its own thread."""

    def __init__(self, store: Store, stage: str) -> None:
        self._store, self._stage = store, stage
        begun = time.strftime("%Y-%m-%dT%H%M%SZ", time.gmtime())
        self._folder, self._files = f"logs/{begun}-{stage}-{uuid.uuid4().hex[:4]}", 0
        self._lines: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self._logged = time.monotonic()

    def begin(self, pool: str, model: str, workers: int, units: int) -> None:
        """Log that the workers of a pool are being started."""
        self._line({"event": "begin", "pool": pool, "model": model, "workers": workers, "units": units})

    def unit(self, pool: str, model: str, report: Report) -> None:
        """Log a worker's report of a unit."""
        names = ("unit", "rows", "tokens", "rejects", "explained", "splits", "worker", "error", "fatal", "wall_s")
        done = {name: getattr(report, name) for name in names}
        self._line({"event": "unit", "pool": pool, "model": model, **done})

    def end(self, pool: str, errors: Sequence[str]) -> None:
        """Log that the cells of a pool are closed, with all errors of its units, workers and cells."""
        self._line({"event": "end", "pool": pool, "errors": list(errors)})

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *error: object) -> None:
        """Write the lines that are left."""
        with self._lock:
            self._log()

    def _line(self, line: dict[str, Any]) -> None:
        """Add a line to the log; from time to time, write the log."""
        with self._lock:
            now = time.monotonic()
            self._lines.append({"time": time.time(), "stage": self._stage, **line})
            if now - self._logged >= LOG_EVERY_S:
                self._logged = now
                self._log()

    def _log(self) -> None:
        """Write the new lines to a new file. If the store refuses them, nothing is raised: other writes report that."""
        lines, self._lines = self._lines, []
        if not lines:
            return
        text = "".join(f"{json.dumps(_readable(line), ensure_ascii=False)}\n" for line in lines)
        with suppress(OSError, RuntimeError):  # the store is full, or another run owns it now
            self._store.write_bytes(f"{self._folder}/{self._files:05d}.jsonl", text.encode())
        self._files += 1


def _readable(line: dict[str, Any]) -> dict[str, Any]:
    """A line of the log with its time as text, floats rounded to 4 digits, and secrets replaced."""
    when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(line["time"]))
    return {**{key: _told(value) for key, value in line.items()}, "time": f"{when}Z"}


def _told(value: Any) -> Any:
    """A value of a line with secrets replaced and floats rounded, also within lists."""
    if isinstance(value, str):
        return without_secrets(value)  # before the line becomes JSON, which may escape parts of a secret
    if isinstance(value, list):
        return [_told(item) for item in value]
    return round(value, 4) if isinstance(value, float) else value
