"""What every stage of a run returns."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StageSummary:
    """What a stage did: how many cells it computed, how many it found complete, and one line for each that failed."""

    stage: str
    computed: int = 0
    skipped: int = 0
    failures: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()  # what the screen shows, one fact a line

    @property
    def complete(self) -> bool:
        return not self.failures
