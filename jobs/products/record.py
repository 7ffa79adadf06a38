"""The record of a product: the functions and facts by which a run computes one kind of artifact."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from closelook.jobs.cluster.attempts import Attempts, Untroubled, Watchdog
from closelook.jobs.plan.node import Node, Part, Run
from closelook.jobs.plan.units import Account, Unit

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from closelook.evaluation.report.page import Part as ReportPart
    from closelook.jobs.plan.models import ResolvedModel
    from closelook.jobs.plan.units import WorkerOptions
    from closelook.jobs.store import Store, Written
    from closelook.lrp_core import ModelView

Row = Mapping[str, Any]  # a row of a tokenised view, or another input of a unit; has a `sample_id`


@dataclass(frozen=True)
class Reject:
    """A sample without a result, and the reason."""

    sample_id: str
    reason: str
    detail: str


class NodeFailed(RuntimeError):
    """A node cannot be computed on this model, whatever the samples; the message names the error."""


@dataclass(frozen=True)
class Made:
    """The result of one part of a unit: the table of its shard, and rejects for the samples without rows in it."""

    table: pa.Table
    rejects: tuple[Reject, ...] = ()
    splits: int = 0  # how often the computation was split because memory ran out
    beside: tuple[pa.Table, ...] = ()  # for artifacts with several folders: the tables of all but the first
    schema: pa.Schema | None = None  # of the table; None: that of the product's record
    facts: Mapping[str, Any] = field(default_factory=dict)  # further entries of the manifest
    written: Mapping[str, Written] = field(default_factory=dict)  # files that the computation has written, by path


@dataclass
class Opened:
    """A worker's open model and settings, which a product's computation may use.

    Computations outside a worker (`compute_alone`) have neither a store nor a run's settings: `of_store` and `of_run`
    are None.
    """

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
        """The run's store; only inside a worker."""
        assert self.of_store is not None
        return self.of_store

    @property
    def options(self) -> WorkerOptions:
        """The settings of the run; only inside a worker."""
        assert self.of_run is not None
        return self.of_run

    @property
    def view(self) -> ModelView:
        """The loaded model; only for products that are computed on a model."""
        assert self.loaded is not None
        return self.loaded

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The model's tokenizer, loaded at first use."""
        from closelook.jobs.plan.models import load_tokenizer

        assert self.model is not None
        config = self.model.config
        return self.remembered("tokenizer", config.name, lambda: load_tokenizer(config))

    def remembered(self, name: str, key: Any, make: Callable[[], Any]) -> Any:
        """The result of `make()`, kept under `name` while the model is open; made again only when `key` changes."""
        if name not in self.memory or self.memory[name][0] != key:
            self.memory[name] = key, make()
        return self.memory[name][1]


def concatenated(opened: Opened, part: Part, values: Sequence[Made]) -> Made:
    """The default `combine`: the tables and rejects of all batches in order, as one result."""
    if len(values) == 1:
        return values[0]
    rejects = tuple(reject for made in values for reject in made.rejects)
    return Made(pa.concat_tables(made.table for made in values), rejects, sum(made.splits for made in values))


@dataclass(frozen=True)
class Product:
    """A kind of artifact: its nodes, its units of work, and the functions that compute and close them.

    >>> product = Product("entropy", title="entropies", stage="attribute", nodes=lambda run: (), on_model=False)
    >>> product.outdated
    'entropies of other inputs, settings or versions'
    """

    name: str  # of the artifacts, and of their folder
    title: str  # a plural noun, for messages that count the artifacts
    stage: str  # the command that computes them
    nodes: Callable[[Run], Iterable[Node]]  # gives all artifacts that a run wants
    schema: Callable[[str], pa.Schema] | None = None  # of shards, by precision
    #: Gives all units of work, committed or not, of nodes that share model, precision and task.
    units: Callable[[Run, Sequence[Any]], Iterable[Unit]] | None = None
    #: Computes parts that share forward passes on the rows of one batch: a value for each part, or a NodeFailed.
    compute: Callable[[Opened, Sequence[Part], Sequence[Row]], Mapping[Part, Any]] | None = None
    #: Turns the values of a part's batches into the content of its shard.
    combine: Callable[[Opened, Part, Sequence[Any]], Made] = concatenated
    #: Gives further lines of the stage's summary about its planned nodes and those that were to be computed.
    lines: Callable[[Run, Sequence[Any], Sequence[Any]], Iterable[str]] = lambda *_: ()
    entries: Callable[[Run, Any], Mapping[str, Any]] = lambda *_: {}  # gives further entries of a node's manifest
    #: Gives further entries of a complete node's manifest, from the paths of its shards; its `rejects` are added.
    conclude: Callable[[Run, Any, Sequence[str]], Mapping[str, Any]] = lambda *_: {}
    #: Writes a node's manifest from the names of its shards, and accounts by path; None: `jobs.runner.closing.close`.
    close: Callable[[Run, Any, Sequence[str], Mapping[str, Account]], str | None] | None = None
    #: The turns of its stage in which it is computed; products of a turn share workers.
    turns: tuple[int, ...] = (0,)
    on_model: bool = True  # False: computed from other artifacts, without a model
    #: For units whose rows are not in the views: gives a function that reads them and yields units with their rows.
    source: Callable[[Run, Any], Callable[[Sequence[Unit]], Iterator[Unit]]] | None = None
    #: For products without units: "module:function" of (config, store), which makes all artifacts and returns the
    #: stage's summary.
    make: str | None = None
    report: Callable[[Run], ReportPart] | None = None  # of an installed package: its tables and figures

    @property
    def heading(self) -> str:
        """The product's row label in the table of `closelook status`."""
        return self.name.replace("_", " ")

    @property
    def outdated(self) -> str:
        """The reason, in words, why an artifact with another key than the planned one is not used."""
        return f"{self.title} of other inputs, settings or versions"
