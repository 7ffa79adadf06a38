"""The work of a pool of workers, and the report about each unit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jobs.config import ModelConfig

Reader = Callable[[], Iterator[Any]]
Report = dict[str, Any]  # a row of `jobs.cluster.reports.REPORT`


@dataclass(frozen=True, eq=False)
class Work:
    """The work of a pool of workers: the units of a model, or of a model in some precisions."""

    name: str  # shown in progress and failures
    model: ModelConfig
    blocks: Sequence[Any]  # one table for each unit, as a worker gets it; () if a reader makes them
    worker: Callable[..., Any]  # class of the workers: an instance is called with a unit's table, commits and reports
    arguments: tuple[Any, ...]  # for the worker's constructor
    size: int  # rows of all units together, as reports count rows
    dtypes: tuple[str, ...] = ()  # precisions in which the model runs
    at_once: int = 1  # units that a worker has at once; 2 if it computes one while it commits another
    on_report: Callable[[Report], None] = lambda report: None  # called with the report of each unit
    on_end: Callable[[], Iterable[str]] = lambda: ()  # called once when the work has ended; returns failures
    #: Makes the reader, which yields the tables of units one by one, so that samples are not in memory before their
    #: turn. The reader is pickled and runs in another process of this machine.
    reader: Callable[[], Reader] | None = None
    read: int = 0  # number of units that the reader yields
    is_task: bool = False  # a single long unit: `worker` is a function of `arguments` and the unit, run as a Ray task

    @property
    def units(self) -> int:
        """The number of units. More workers than that would be idle."""
        return self.read if self.reader is not None else len(self.blocks)

    def tables(self) -> Iterator[Any]:
        """The tables of the units, one after the other."""
        yield from self.blocks if self.reader is None else self.reader()()
