"""The node of a method's sources of answers."""

from __future__ import annotations

from dataclasses import dataclass

from jobs.plan.node import Cell


@dataclass(frozen=True, eq=False, kw_only=True)
class SourcesNode(Cell):
    """The sources of answers by one method; `requests` are those of its relevance of tokens, none of what is made of
    ablations."""

    pool: str
    seed: int
    shown: frozenset[str]  # samples whose answer is explained sentence by sentence
