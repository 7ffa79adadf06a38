"""Measures the time of the stages of a pass (forward, backward, aggregation), by method."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

import torch


class StageClock:
    """Measures seconds by (method, stage), from lap to lap. Work that several methods share counts fully for each.

    On a GPU a lap records an event and does not wait; reading `seconds` waits for the device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._laps: list[tuple[tuple[str, ...], str, Any, Any]] = []  # methods, stage, beginning, end
        self._last = self._now()

    def lap(self, stage: str, *methods: str) -> None:
        """Count the time since the last lap, or since the clock was made, as `stage` of each of `methods`."""
        now = self._now()
        self._laps.append((tuple(dict.fromkeys(methods)), stage, self._last, now))
        self._last = now

    @property
    def seconds(self) -> dict[tuple[str, str], float]:
        """Seconds by (method, stage)."""
        measured: dict[tuple[str, str], float] = defaultdict(float)
        for methods, stage, start, end in self._laps:
            for method in methods:
                measured[method, stage] += self._between(start, end)
        return measured

    def _between(self, start: Any, end: Any) -> float:
        """The seconds between two results of `_now`."""
        if self._device.type != "cuda":
            return end - start
        end.synchronize()
        return start.elapsed_time(end) / 1000

    def _now(self) -> Any:
        """The present time in seconds, or an event recorded on the GPU."""
        if self._device.type != "cuda":
            return time.perf_counter()
        with torch.cuda.device(self._device):
            event = torch.cuda.Event(enable_timing=True)
            event.record()
        return event
