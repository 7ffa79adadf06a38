"""The work that a pool of workers is given, and the report that they give of each unit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jobs.config import ModelConfig

Report = dict[str, Any]  # a row of `jobs.cluster.reports.REPORT`


@dataclass(frozen=True, eq=False)
class Work:
    """The work of one pool of workers: the units of a model, or of a model in one precision."""

    name: str  # in progress and failures
    model: ModelConfig
    #: A unit each, unless `reader` makes several of one; of a pipeline, what makes a worker's table in its turn.
    blocks: Sequence[Any]
    worker: Callable[..., Any]  # of a pipeline, a class: called with a unit's table, it commits and reports
    arguments: tuple[Any, ...]  # of the worker's constructor
    size: int  # of all units, in what their reports count as rows
    dtypes: tuple[str, ...] = ()  # precisions in which the model runs
    at_once: int = 1  # units that a worker has in hand; of a worker that computes one while it commits another, two
    on_report: Callable[[Report], None] = lambda report: None
    on_end: Callable[[], Iterable[str]] = lambda: ()  # closes what is complete, however the work ended; gives failures
    reader: Callable[[Any], Iterator[Any]] | None = None  # of a pipeline: makes units' tables of a block's, one by one
    read: int = 0  # units that it makes

    @property
    def units(self) -> int:
        """The number of workers that could be of use."""
        return self.read or len(self.blocks)

    def tables(self) -> Iterator[Any]:
        """The tables of units, one after the other."""
        for block in self.blocks:
            yield from (block(),) if self.reader is None else self.reader(block())
