"""The summary that every stage of a run returns."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StageSummary:
    """The result of a stage: artifacts that it computed and that were complete before, and a line for each failure."""

    stage: str
    computed: int = 0
    skipped: int = 0
    failures: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()  # what the screen shows, one fact a line

    @property
    def complete(self) -> bool:
        return not self.failures
