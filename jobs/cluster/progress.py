"""Progress of a stage: a bar a model in a terminal, a line every ten seconds elsewhere, whether or not units end."""

from __future__ import annotations

import threading
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

LINE_EVERY_S = 10.0
LOADING = "loading"  # and explaining the first unit


class Progress:
    """Rows, tokens per second and time left of every model. Thread safe: each model reports from its own thread."""

    def __init__(
        self,
        rows: dict[str, int],
        console: Console | None = None,
        stage: str = "attribute",
        unit: str = "rows",
        slots: str = "CPUs",
    ) -> None:
        """`rows` to do, by model; `stage` and `unit` are what lines call the work and what is counted.

        `slots` are what models that have not begun wait for.
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

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self._stopped.set()
        if self._beating.is_alive():
            self._beating.join()
        self._bars.stop()

    def begin(self, model: str) -> None:
        """The model's workers are being started."""
        with self._lock:
            self._since[model] = time.monotonic()
            self._bars.start_task(self._tasks[model])
            self._bars.update(self._tasks[model], speed=LOADING)

    def end(self, model: str) -> None:
        """The model's workers are gone: lines say no more of it."""
        with self._lock:
            self._ended.add(model)

    def advance(self, model: str, rows: int, tokens: int) -> None:
        """`rows` more samples of the model, with so many `tokens`, are committed."""
        with self._lock:
            self._done[model] += rows
            self._tokens[model] += tokens
            self._bars.update(self._tasks[model], advance=rows, speed=f"{self._speed(model):,.0f} tokens/s")
            self._tell()

    def _beat(self) -> None:
        while not self._stopped.wait(max(LINE_EVERY_S, 0.01)):
            with self._lock:
                self._tell()

    def _tell(self) -> None:
        """The line, where one is due; the lock is held."""
        if self._console.is_terminal or time.monotonic() - self._last_line < LINE_EVERY_S:
            return
        self._last_line = time.monotonic()
        lines = [self._line(name) for name in self._totals if name not in self._ended]
        if lines:
            self._console.print(f"{self._stage}: {'; '.join(lines)}", highlight=False, soft_wrap=True)

    def _speed(self, model: str) -> float:
        return self._tokens[model] / max(time.monotonic() - self._since[model], 1e-9)

    def _line(self, model: str) -> str:
        if model not in self._since:
            return f"{model} {self._waiting}"
        done, total = self._done[model], self._totals[model]
        if not done:
            return f"{model} {LOADING}, {total} {self._unit} to do"
        elapsed_s = time.monotonic() - self._since[model]
        left = f", {elapsed_s / done * (total - done):.0f} s left" if 0 < done < total else ""
        return f"{model} {done}/{total} {self._unit}, {self._speed(model):,.0f} tokens/s{left}"
