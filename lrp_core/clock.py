"""Where the time of a pass goes: forward, backward, aggregation, by method."""

from __future__ import annotations

import time
from collections import defaultdict

import torch


class StageClock:
    """Seconds by (method, stage), from lap to lap; work that several methods share counts for each of them in full."""

    def __init__(self, device: torch.device) -> None:
        self.seconds: dict[tuple[str, str], float] = defaultdict(float)
        self._device = device
        self._last = self._now()

    def lap(self, stage: str, *methods: str) -> None:
        """Counts the time since the last lap, or since the clock was made, as `stage` of `methods`."""
        now = self._now()
        for method in dict.fromkeys(methods):
            self.seconds[method, stage] += now - self._last
        self._last = now

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()
