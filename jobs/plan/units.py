"""Units of work: cut from the samples of an artifact, always in the same way, and as they travel to workers and back.

A unit becomes one shard of every artifact that shares it. Its samples, their order and the cuts into batches depend
only on the samples and the budgets. So a unit that is computed again, by any worker, gives the same bytes.
"""

from __future__ import annotations

import hashlib
import pickle
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from closelook.jobs.config import ModelConfig, RunConfig, configured
from closelook.jobs.plan.gather import gather
from closelook.jobs.plan.inputs import Inputs, Selected
from closelook.jobs.plan.node import Node, Part
from closelook.jobs.store import Written
from closelook.lrp_core.methods.record import Method

T = TypeVar("T")
FORWARD_FACTOR = 8  # a forward pass without gradients takes this many times the tokens of one with gradients
FEW = 3  # so few rows may all fail without the unit or node counting as failed
LABELS_PASS = "(labels)"  # ends the name of a pass in measurements if it explained every label
NO_FOIL = "no_foil"  # the sample has no foil, which a contrastive explanation needs
NO_RELEVANCE = "no_relevance"  # the method gave no relevance for the sample
NO_ABLATIONS = "no_ablations"  # the sample's ablations were rejected, or are too few to fit a method to
NOTHING_TO_FLIP = "nothing_to_flip"  # no token of the sample may be removed
#: Reasons that lie in the data: rejects with them are no failures.
REASONS_IN_DATA = frozenset({NO_FOIL, NO_RELEVANCE, NO_ABLATIONS, NOTHING_TO_FLIP})


@dataclass(frozen=True, eq=False, slots=True)
class Unit:
    """Samples that a worker computes and commits at once, for all nodes that share the unit.

    `rows` are indices into the views of a task, those samples once the unit is sent, or other rows. `cuts` are the
    indices in `rows` at which batches start. `parts` lists the shards that the unit becomes; None: one for each node,
    named as the unit.
    """

    name: str
    parts: tuple[Part, ...] | None = None
    rows: np.ndarray | Selected | Sequence[Mapping[str, Any]] = ()
    cuts: tuple[int, ...] = (0,)
    tokens: int = 0  # about how many tokens the unit costs: of its samples without padding, or of its forward passes
    token_budget: int = 0  # most tokens of one forward pass
    size: int | None = None  # by how much the unit advances the progress; None: the number of rows

    @property
    def progress(self) -> int:
        """By how much the unit advances the progress bar: `size`, or the number of rows."""
        return len(self.rows) if self.size is None else self.size

    def parts_of(self, nodes: Sequence[Node]) -> tuple[Part, ...]:
        """The parts of the unit for these nodes, which share it."""
        return tuple(Part(node, self.name) for node in nodes) if self.parts is None else self.parts

    @property
    def sent_parts(self) -> tuple[Part, ...]:
        """The parts of a unit that is sent to a worker."""
        assert self.parts is not None
        return self.parts

    @property
    def title(self) -> str:
        """The unit's name with that of its product, model, task and precision; of a unit that is sent to a worker."""
        artifact = self.sent_parts[0].node.artifact
        columns = (artifact.product, artifact.model, artifact.task, artifact.dtype, self.name)
        return ".".join(filter(None, columns))

    def to_table(self) -> pa.Table:
        """The unit as it travels through Ray."""
        return pa.table({"unit": pa.array([pickle.dumps(self)], pa.large_binary())})


@dataclass(frozen=True)
class WorkerOptions:
    """The settings of a run that a worker needs."""

    seed: int
    max_attempts: int
    checkpoint: bool
    byte_budget: int | None
    methods: Mapping[str, Method]  # of the run, by their names there
    run: str  # tells the notes of this run's workers from those of earlier ones
    batch_limit_s: float = 0  # a batch that takes longer counts as hanging; 0: no limit

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that functions of methods may take."""
        return {"checkpoint": self.checkpoint, "byte_budget": self.byte_budget, "seed": self.seed}

    @classmethod
    def of(cls, config: RunConfig, model: ModelConfig | None) -> WorkerOptions:
        """The settings for workers of `model`; None: for work without a model."""
        # Without recomputation, autograd would keep the weights of every offloaded block alive.
        checkpoint = model is not None and (model.checkpoint or model.max_memory is not None)
        run = uuid.uuid4().hex
        methods, limit_s = configured(config), config.ray.no_progress_timeout_s
        return cls(config.seed, config.max_attempts, checkpoint, config.byte_budget, methods, run, limit_s)


@dataclass(frozen=True)
class Account:
    """The content of a shard, as reported by the worker that wrote it, or as read from its file."""

    explained: int | None  # samples that have rows; None where rows are not of samples
    rejects: list[dict[str, Any]]  # rows of REJECT
    facts: dict[str, Any] = field(default_factory=dict)  # further entries of the manifest
    files: dict[str, Written] = field(default_factory=dict)  # by path: the shard, and what belongs to it

    @property
    def failures(self) -> list[dict[str, Any]]:
        """The rejects whose reason does not lie in the data."""
        return [reject for reject in self.rejects if reject["reason"] not in REASONS_IN_DATA]


def cut_units(inputs: Inputs, rows: Sequence[int] | np.ndarray, token_budget: int, shard_rows: int) -> list[Unit]:
    """Units of whole batches of `rows` (indices into `inputs`), about `shard_rows` samples each, the longest first."""
    ascending = np.sort(np.asarray(rows, np.int32))
    name = "units", hashlib.sha256(ascending.data).hexdigest(), token_budget, shard_rows  # the same for many models
    return inputs.kept(name, lambda: _cut_units(inputs, ascending, token_budget, shard_rows))


def _cut_units(inputs: Inputs, rows: np.ndarray, token_budget: int, shard_rows: int) -> list[Unit]:
    """Cut `rows`, ascending indices of `inputs`, into batches within `token_budget`, and the batches into units.

    Samples with a foil come before those without, longer before shorter, then by id.
    """
    foilless = inputs.table["foil_id"].is_null().to_numpy()  # a batch has foils for all samples or for none
    order = _longest_first(inputs, rows, foilless=foilless[rows])
    batches = _batches(order, inputs.lengths[order], foilless[order], token_budget)
    units = groups(((batch, len(batch)) for batch in batches), shard_rows)
    return [_unit(index, of_unit, inputs, inputs.lengths) for index, (of_unit, _) in enumerate(units)]


def cut_by_tokens(inputs: Inputs, rows: Sequence[int] | np.ndarray, tokens: np.ndarray, unit_tokens: int) -> list[Unit]:
    """Units of one batch each, the longest samples first: as many as cost (`tokens` [N]) `unit_tokens` together."""
    order = _longest_first(inputs, np.sort(np.asarray(rows, np.int32)))
    units = groups(zip(order.tolist(), tokens[order].tolist(), strict=True), unit_tokens)
    return [_unit(index, [np.array(of_unit)], inputs, tokens) for index, (of_unit, _) in enumerate(units)]


def _longest_first(inputs: Inputs, rows: np.ndarray, **first: np.ndarray) -> np.ndarray:
    """`rows`, ascending indices of `inputs`, sorted by the columns `first`, then longer before shorter, then by id."""
    ids = inputs.table.select(["sample_id"])
    ids = ids if len(rows) == inputs.rows else gather(ids, rows)  # avoids a copy of millions of ids
    keys = {**first, "minus_length": -inputs.lengths[rows], "id": ids["sample_id"]}
    sorted_by = [(name, "ascending") for name in keys]
    return rows[pc.sort_indices(pa.table(keys), sort_keys=sorted_by).to_numpy()]


def groups(items: Iterable[tuple[T, int]], most: int) -> Iterator[tuple[list[T], int]]:
    """Yield groups of consecutive items that cost at most `most` together, or of one item, each with its cost.

    `items` are pairs of an item and its cost.
    """
    group: list[T] = []
    total = 0
    for item, cost in items:
        if group and total + cost > most:
            yield group, total
            group, total = [], 0
        group.append(item)
        total += cost
    if group:
        yield group, total


def _batches(order: np.ndarray, lengths: np.ndarray, foilless: np.ndarray, token_budget: int) -> Iterator[np.ndarray]:
    """Yield consecutive batches of `order` [N], each with a padded size (samples x longest) within `token_budget`.

    A batch has at least one sample, and never mixes samples with and without a foil. `lengths` and `foilless` [N]
    belong to the samples of `order`, in which those with a foil come first, and in both groups the longest.
    """
    with_foil = int((~foilless).sum())
    start = 0
    while start < len(order):
        end = start + max(1, token_budget // int(lengths[start]))
        if start < with_foil:
            end = min(end, with_foil)
        yield order[start:end]
        start = end


def _unit(index: int, batches: list[np.ndarray], inputs: Inputs, lengths: np.ndarray) -> Unit:
    """The unit of these batches of rows.

    `lengths` [N] is the cost of each sample. The name has a hash of samples and cuts.
    """
    rows = np.concatenate(batches).astype(np.int32)
    starts = np.cumsum([0, *map(len, batches[:-1])])
    cuts = tuple(int(start) for start in starts)
    content = "\n".join([*inputs.ids(rows), repr(cuts)])
    digest = hashlib.sha256(content.encode()).hexdigest()[:8]
    return Unit(f"{index:05d}-{digest}", rows=rows, cuts=cuts, tokens=int(lengths[rows].sum()))
