"""The record of a product: the functions and facts by which a run computes one kind of artifact."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from jobs.cluster.attempts import Attempts, Untroubled
from jobs.plan.node import Node, Part, Run
from jobs.plan.units import Unit
from jobs.runner.watchdog import Watchdog

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from evaluation.report.page import Part as ReportPart
    from jobs.config import ModelConfig, RunConfig
    from jobs.plan.models import ResolvedModel
    from jobs.runner.task import Task, WorkerOptions
    from jobs.store import Store, Written
    from lrp_core import ModelView

Row = Mapping[str, Any]  # a sample of the views, or another input with a `sample_id`


@dataclass(frozen=True)
class Reject:
    """A sample without a result, and the reason."""

    sample_id: str
    reason: str
    detail: str


class NodeFailed(RuntimeError):
    """A node cannot be computed on this model, whatever the samples; the message names the error."""


class Exited(RuntimeError):
    """Code of a package raised an exception that would end the process, such as SystemExit; the message names it."""


@dataclass(frozen=True)
class Made:
    """The result of a part: the table of its shard, and the samples that have no rows there."""

    table: pa.Table
    rejects: tuple[Reject, ...] = ()
    splits: int = 0  # how often the computation was split for want of memory
    beside: tuple[pa.Table, ...] = ()  # the tables of the artifact's further folders
    schema: pa.Schema | None = None  # of the table; None: the product's
    facts: Mapping[str, Any] = field(default_factory=dict)  # further entries of the manifest
    written: Mapping[str, Written] = field(default_factory=dict)  # files that the computation wrote itself, by path

    def only(self, samples: Collection[str]) -> Made:
        """The rows and rejects of these samples."""
        kept = pc.is_in(self.table["sample_id"], pa.array(samples, pa.string()))
        rejects = tuple(reject for reject in self.rejects if reject.sample_id in samples)
        return Made(self.table.filter(kept), rejects, self.splits)


@dataclass
class Opened:
    """A worker with its model open: what a computation may use. Without a worker, `of_store` and `of_run` are None."""

    of_store: Store | None = None
    of_run: WorkerOptions | None = None
    attempts: Attempts = field(default_factory=Untroubled)
    model: ResolvedModel | None = None
    loaded: ModelView | None = None
    token_budget: int = 0
    memory: dict[Any, Any] = field(default_factory=dict)  # kept from unit to unit while the model is open
    watchdog: Watchdog = field(default_factory=Watchdog)

    @property
    def store(self) -> Store:
        assert self.of_store is not None
        return self.of_store

    @property
    def options(self) -> WorkerOptions:
        assert self.of_run is not None
        return self.of_run

    @property
    def view(self) -> ModelView:
        assert self.loaded is not None
        return self.loaded

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        from jobs.plan.models import load_tokenizer

        assert self.model is not None
        config = self.model.config
        return self.remembered("tokenizer", config.name, lambda: load_tokenizer(config))

    def remembered(self, name: str, key: Any, make: Callable[[], Any]) -> Any:
        """The last result of `make` under this name, made again when `key` changes."""
        if name not in self.memory or self.memory[name][0] != key:
            self.memory[name] = key, make()
        return self.memory[name][1]


#: How many artifacts a run will want, by precision, of a model, task and methods whose samples or weights are absent.
Expected = Callable[["RunConfig", "ModelConfig", str, list[str]], dict[str, int]]


def each_method(config: RunConfig, model: ModelConfig, task: str, methods: list[str]) -> dict[str, int]:
    """The `expected` of products with an artifact for every method in every precision."""
    return dict.fromkeys(model.dtypes_for(task), len(methods))


def of_no_task(config: RunConfig, model: ModelConfig, task: str, methods: list[str]) -> dict[str, int]:
    """The `expected` of products that belong to a model or a corpus: none of them counts for a task."""
    return {}


def concatenated(opened: Opened, part: Part, values: Sequence[Made]) -> Made:
    """The rows of all values, in order; a single value as it is."""
    if len(values) == 1:
        return values[0]
    rejects = tuple(reject for made in values for reject in made.rejects)
    return Made(pa.concat_tables(made.table for made in values), rejects, sum(made.splits for made in values))


@dataclass(frozen=True)
class Shown:
    """A package's product in `closelook plan` and in the report."""

    forwards: Callable[[Node], float] = lambda node: 0  # of the model on a sample, that the node costs
    report: Callable[[Run], ReportPart] | None = None  # its tables and figures


@dataclass(frozen=True)
class Product:
    """A kind of artifact: its nodes, its units of work, and the functions that compute and close them.

    >>> product = Product("entropy", title="entropies", stage="attribute", nodes=lambda run: (), on_model=False)
    >>> product.outdated
    'entropies of other inputs, settings or versions'
    """

    name: str  # of its artifacts
    title: str  # a plural, as messages count them
    stage: str  # the command that makes it
    nodes: Callable[[Run], Iterable[Node]]
    expected: Expected = of_no_task
    schema: Callable[[str], pa.Schema] | None = None  # of shards, by precision
    #: Every unit of some nodes of one model, precision and task, whether it is committed or not.
    units: Callable[[Run, Sequence[Node]], Iterable[Unit]] | None = None
    #: The values of parts that share forwards, from rows; a value may be a NodeFailed.
    compute: Callable[[Opened, Sequence[Part], Sequence[Row]], Mapping[Part, Any]] | None = None
    #: The values of a part's batches become its shard.
    combine: Callable[[Opened, Part, Sequence[Any]], Made] = concatenated
    close: Callable[..., str | None] | None = None  # enters a node in the ledger; None: `jobs.runner.closing.close`
    on_model: bool = True  # False: it is computed from artifacts alone
    #: Reads the rows of units that are not of views: gives tasks with their rows, as their source is read.
    source: Callable[[Run, Node], Callable[[Sequence[Task]], Iterator[Task]]] | None = None
    #: "module:function" of (config, store) to the stage's summary, where units are not what it is made of.
    make: str | None = None
    shown: Shown = Shown()  # of a package's product

    @property
    def heading(self) -> str:
        """The name in the table of `closelook status`."""
        return self.name.replace("_", " ")

    @property
    def outdated(self) -> str:
        """The reason why an artifact of another key is of no use."""
        return f"{self.title} of other inputs, settings or versions"
