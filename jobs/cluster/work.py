"""The work that a pool of workers is given, and the report that they give of each unit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jobs.config import ModelConfig

Reader = Callable[[], Iterator[Any]]
Report = dict[str, Any]  # a row of `jobs.cluster.reports.REPORT`


@dataclass(frozen=True, eq=False)
class Work:
    """The work of a pool of workers: the units of a model, or of a model in one precision."""

    name: str  # in progress and failures
    model: ModelConfig
    blocks: Sequence[Any]  # a unit each, as a worker gets it; none where a reader makes them
    worker: Callable[..., Any]  # of a pipeline, a class: called with a unit's table, it commits and reports
    arguments: tuple[Any, ...]  # of the worker's constructor
    size: int  # of all units, in what their reports count as rows
    dtypes: tuple[str, ...] = ()  # precisions in which the model runs
    at_once: int = 1  # units that a worker has in hand; of a worker that computes one while it commits another, two
    on_report: Callable[[Report], None] = lambda report: None
    on_end: Callable[[], Iterable[str]] = lambda: ()  # closes what is complete, however the work ended; gives failures
    #: Gives the reader, which makes the units one by one, each in its turn: their samples are nowhere in memory before.
    #: A reader may travel to other processes of this machine.
    reader: Callable[[], Reader] | None = None
    read: int = 0  # units that it makes
    is_task: bool = False  # the only unit is long, and a task of its own: `worker` is a function that also takes it

    @property
    def units(self) -> int:
        """The number of units: more workers are of no use."""
        return self.read if self.reader is not None else len(self.blocks)

    def tables(self) -> Iterator[Any]:
        """The tables of units, one after the other."""
        yield from self.blocks if self.reader is None else self.reader()()
