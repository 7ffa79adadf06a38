"""Progress of a stage: a bar a model in a terminal, a line every ten seconds elsewhere."""

from __future__ import annotations

import threading
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

LINE_EVERY_S = 10.0


class Progress:
    """Rows, tokens per second and time left of every model. Thread safe: each model reports from its own thread."""

    def __init__(
        self, rows: dict[str, int], console: Console | None = None, stage: str = "attribute", unit: str = "rows"
    ) -> None:
        """`rows` to do, by model; `stage` and `unit` are what lines call the work and what is counted."""
        self._stage, self._unit = stage, unit
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
            self._tasks[model] = self._bars.add_task(model, total=total, speed="", start=False)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self._bars.stop()

    def begin(self, model: str) -> None:
        """The model's workers are being started."""
        with self._lock:
            self._since[model] = time.monotonic()
            self._bars.start_task(self._tasks[model])

    def advance(self, model: str, rows: int, tokens: int) -> None:
        """`rows` more samples of the model, with so many `tokens`, are committed."""
        with self._lock:
            self._done[model] += rows
            self._tokens[model] += tokens
            self._bars.update(self._tasks[model], advance=rows, speed=f"{self._speed(model):,.0f} tokens/s")
            due = time.monotonic() - self._last_line >= LINE_EVERY_S
            if not self._console.is_terminal and due:
                self._last_line = time.monotonic()
                lines = "; ".join(self._line(name) for name in self._since)
                self._console.print(f"{self._stage}: {lines}", highlight=False, soft_wrap=True)

    def _speed(self, model: str) -> float:
        return self._tokens[model] / max(time.monotonic() - self._since[model], 1e-9)

    def _line(self, model: str) -> str:
        done, total = self._done[model], self._totals[model]
        elapsed_s = time.monotonic() - self._since[model]
        left = f", {elapsed_s / done * (total - done):.0f} s left" if 0 < done < total else ""
        return f"{model} {done}/{total} {self._unit}, {self._speed(model):,.0f} tokens/s{left}"
