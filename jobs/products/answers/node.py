"""The node of the sources of answers by one method."""

from __future__ import annotations

from dataclasses import dataclass

from jobs.plan.node import Cell


@dataclass(frozen=True, eq=False, kw_only=True)
class SourcesNode(Cell):
    """The sources of a task's answers by one method.

    `requests` are those of the relevance of tokens from which sources are computed; empty for methods that use
    ablations.
    """

    pool: str
    seed: int
    shown: frozenset[str]  # ids of samples whose answers are also explained sentence by sentence
