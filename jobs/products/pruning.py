"""Pruning curves (Close Look 5.3): accuracy while heads are removed in the order of their relevance, or at random.

Their keys cover the head relevance that ranks the heads, or the samples and the seed of random orders. The curves of
several methods are computed together, so that a set of heads that several curves remove runs once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from closelook.evaluation.schema import HEADS, titled
from closelook.evaluation.schema import PRUNING as SCHEMA
from closelook.evaluation.scoring.head_orders import (
    RANDOM,
    RemovalOrder,
    area,
    half_of,
    random_curves,
    ranked_curves,
    removed_at_points,
)
from closelook.jobs.config import PruneConfig, RunConfig
from closelook.jobs.plan.clusters import clusters_of
from closelook.jobs.plan.node import ModelPlan, Node, Part, Run
from closelook.jobs.plan.units import FORWARD_FACTOR, groups
from closelook.jobs.products.record import Made, Opened, Product, Row, Unit
from closelook.jobs.store import Artifact
from closelook.lrp_core.records.explained import CONTRASTIVE
from closelook.lrp_core.records.types import Request

VERSION = 3  # raised when curves change: stored ones of older versions are stale
UNIT_TOKENS = 20_000_000  # of a unit's forward passes: what is computed again if its worker is lost


@dataclass(frozen=True, eq=False, kw_only=True)
class PruningNode(Node):
    """All pruning curves of one method, or of random orders, on a task."""

    step: int  # heads removed between two points
    clusters: Mapping[str, str] = field(default_factory=dict)  # by sample id; samples without one are left out

    @property
    def method(self) -> str:
        """The method whose relevance orders the heads, or RANDOM."""
        return self.artifact.method

    @property
    def sources(self) -> tuple[Artifact, ...]:
        """The head relevance that orders the heads; nothing for random orders, whose numbers do not depend on it."""
        return () if self.method == RANDOM else self.needs

    @property
    def heads(self) -> Artifact:
        """The head relevance that orders the heads; random orders take only the number of heads from it."""
        return self.needs[0]


def nodes(run: Run) -> Iterator[PruningNode]:
    """The pruning curves of all models; none without settings."""
    settings = run.config.prune
    if settings is None:
        return
    for model in run.plan.models:
        yield from pruning_of(run, settings, model)


def pruning_of(run: Run, settings: PruneConfig, model: ModelPlan) -> Iterator[PruningNode]:
    """The nodes of a model's pruning curves; none if the settings leave the model out.

    Each method whose contrastive head relevance is planned has a node, and each task and precision of these has one of
    random orders, which takes the number of heads from the first method's relevance.
    """
    if not settings.takes(model=model.name):
        return
    first_heads: dict[tuple[str, str], Artifact] = {}
    for cell in model.cells:
        cell_heads = cell.artifact
        is_ranked = cell_heads.product == "heads" and _is_contrastive(cell.requests)
        if not is_ranked or not settings.takes(task=cell_heads.task):
            continue
        first_heads.setdefault((cell_heads.task, cell_heads.dtype), cell_heads)
        if settings.takes(method=cell_heads.method):
            orders = {"heads": cell_heads.key, "poolings": settings.poolings, "orders": settings.orders}
            yield _node(run, settings, model, cell_heads, cell_heads.method, orders)
    for heads in first_heads.values() if settings.random_runs else ():
        rows = subset(run.config, model, heads.task).tolist()
        random = {**model.key_fields(heads, rows, run.config.seed), "runs": settings.random_runs}
        yield _node(run, settings, model, heads, RANDOM, random)


def _is_contrastive(requests: Sequence[Request]) -> bool:
    """True if one of the requests is contrastive: only such relevance orders heads."""
    return any(request.explanation == CONTRASTIVE.name for request in requests)


def _node(
    run: Run,
    settings: PruneConfig,
    model: ModelPlan,
    heads: Artifact,
    method: str,
    orders: Mapping[str, Any],
) -> PruningNode:
    """The node of a method's curves, or of random ones; `orders` are the key fields that decide the orders of heads."""
    gold = [model.inputs[heads.task].digest_of("gold"), model.resolved.labels]
    clusters = _clusters(run, model, heads.task)
    halves = {"clusters": sorted(clusters.items())} if clusters and method != RANDOM else {}
    return PruningNode(
        artifact=Artifact("pruning", *heads.columns[:3], method),
        key_fields=dict(version=VERSION, schema=titled(SCHEMA), gold=gold, step=settings.step, **orders, **halves),
        samples=len(subset(run.config, model, heads.task)),
        needs=(heads,),
        model=model,
        step=settings.step,
        clusters=clusters,
    )


def _clusters(run: Run, model: ModelPlan, task: str) -> dict[str, str]:
    """The cluster of each sample with relevance of heads, by sample id; samples without a cluster are left out."""
    known, inputs = clusters_of(run.ledger, task), model.inputs[task]
    if not known:
        return {}
    drawn = inputs.subset((run.config.heads or {}).get(task), run.config.seed)
    names = inputs.ids(drawn)
    return {name: known[name] for name in names if name in known}


def subset(config: RunConfig, model: ModelPlan, task: str) -> np.ndarray:
    """The samples on which pruned models are evaluated, the same for every method: indices into the task's views.

    These are the samples with relevance of heads that have a foil or a label, without which nothing is right or wrong.
    """
    inputs = model.inputs[task]
    rows = inputs.subset((config.heads or {}).get(task), config.seed)
    known = pc.or_(inputs.table["foil_id"].is_valid(), inputs.table["label"].is_valid())
    return rows[known.to_numpy()[rows]]


def units(run: Run, nodes: Sequence[PruningNode]) -> Iterator[Unit]:
    """Units of about UNIT_TOKENS tokens, each for all samples; a unit has whole curves, of one or several methods.

    Yields none if no sample can be evaluated.
    """
    rows = subset(run.config, nodes[0].plan, nodes[0].artifact.task)
    budget = FORWARD_FACTOR * run.token_budget(nodes[0])
    if len(rows):
        for parts, tokens in groups(_parts(run, nodes, rows), UNIT_TOKENS):
            yield _unit(parts, rows, tokens, budget)


def _parts(run: Run, nodes: Sequence[PruningNode], rows: np.ndarray) -> Iterator[tuple[Part, int]]:
    """Yield parts of whole curves, one at least and about UNIT_TOKENS tokens each, with their number of tokens."""
    for node in nodes:
        orders = _orders(run, node)
        points = -(-len(orders[0].heads) // node.step) + 1
        curve_tokens = max(1, points * int(node.inputs.lengths[rows].sum()))
        size = max(1, UNIT_TOKENS // curve_tokens)
        for index, start in enumerate(range(0, len(orders), size)):
            part_orders = tuple(orders[start : start + size])
            whole = sum(order.half is None for order in part_orders)
            tokens = whole * curve_tokens + (len(part_orders) - whole) * curve_tokens // 2  # about half of the samples
            yield Part(node, f"{index:03d}", part_orders), tokens


def _unit(parts: Sequence[Part], rows: np.ndarray, tokens: int, token_budget: int) -> Unit:
    """The unit of these parts, which all evaluate the samples `rows`."""
    first = parts[0]
    curves = sum(len(part.inputs) for part in parts)
    name = f"{first.node.artifact.method}-{first.shard}"
    return Unit(name, tuple(parts), rows, tokens=tokens, token_budget=token_budget, size=curves)


def _orders(run: Run, node: PruningNode) -> list[RemovalOrder]:
    """The orders in which the curves of a node remove heads: by mean relevance, or at random."""
    settings = run.config.prune
    assert settings is not None
    table = run.ledger.read(node.heads, HEADS)
    if node.method == RANDOM:
        return random_curves(len(table["relevance"][0]), settings.random_runs, run.config.seed)
    table = table.filter(pc.equal(table["explanation"], CONTRASTIVE.name))
    table = table.sort_by("sample_id")  # a mean does not depend on how samples were cut into units
    relevance: dict[tuple[str, str], np.ndarray] = {}
    for pooling in settings.poolings:
        lists = table.filter(pc.equal(table["pooling"], pooling))["relevance"].combine_chunks()
        relevance[node.method, pooling] = lists.flatten().to_numpy().reshape(len(lists), -1)
    samples = dict.fromkeys(table["sample_id"].to_pylist())
    halves = np.array([half_of(node.clusters.get(sample, sample), run.config.seed) for sample in samples])
    return ranked_curves(relevance, settings.orders, halves)


@dataclass(frozen=True)
class Hits:
    """The samples that the model gets right with heads removed, for C curves, S points of a curve and N samples."""

    samples: tuple[str, ...]  # [N] ids of the samples with finite logits
    right: np.ndarray  # [C, S, N] bool; False where a curve does not evaluate the sample
    evaluated: np.ndarray  # [C, N] bool
    removed: np.ndarray  # [S] heads removed at each point
    splits: int


def compute(opened: Opened, parts: Sequence[Part], rows: Sequence[Row]) -> Mapping[Part, Hits]:
    """The hits of every part's curves. Each sample runs under the curves that evaluate it.

    A curve whose order was made from one half of the samples evaluates the other half only.
    """
    orders = [order for part in parts for order in part.inputs]
    first, seed = parts[0].node, opened.options.seed
    together: dict[tuple[int, ...], list[Row]] = {}  # rows by the indices of the orders that evaluate them
    for row in rows:
        half = half_of(first.clusters.get(row["sample_id"], row["sample_id"]), seed)
        evaluating = tuple(at for at, order in enumerate(orders) if order.evaluates(half))
        together.setdefault(evaluating, []).append(row)
    swept = [_swept(opened, first, orders, evaluating, sharing) for evaluating, sharing in together.items()]
    samples = tuple(sample for hits in swept for sample in hits.samples)
    right = np.concatenate([hits.right for hits in swept], axis=2)
    evaluated = np.concatenate([hits.evaluated for hits in swept], axis=1)
    every = Hits(samples, right, evaluated, swept[0].removed, sum(hits.splits for hits in swept))
    part_hits: dict[Part, Hits] = {}
    start = 0
    for part in parts:
        end = start + len(part.inputs)
        part_hits[part] = replace(every, right=right[start:end], evaluated=evaluated[start:end])
        start = end
    return part_hits


def _swept(
    opened: Opened, node: PruningNode, orders: Sequence[RemovalOrder], evaluating: Sequence[int], rows: Sequence[Row]
) -> Hits:
    """The hits of `rows` under the orders with the indices `evaluating`; False under all other orders."""
    from closelook.evaluation.scoring.pruning import Sweep
    from closelook.jobs.runner.rows import that_fits

    removed, splits = removed_at_points(len(orders[0].heads), node.step), 0
    right, finite = np.zeros((0, len(removed), len(rows)), bool), np.ones(len(rows), bool)
    if evaluating:
        sweep = Sweep(opened.view, [orders[at] for at in evaluating], node.step)
        (right, finite), splits = that_fits(partial(sweep.right, rows), opened.token_budget)
    names = tuple(row["sample_id"] for row, is_finite in zip(rows, finite, strict=True) if is_finite)
    every = np.zeros((len(orders), len(removed), len(names)), bool)
    every[list(evaluating)] = right[:, :, finite]
    evaluated = np.zeros((len(orders), len(names)), bool)
    evaluated[list(evaluating)] = True
    return Hits(names, every, evaluated, removed, splits)


def combine(opened: Opened, part: Part, values: Sequence[Hits]) -> Made:
    """A row for each point of each curve: the accuracy over the samples of all batches that the curve evaluates.

    Raises ValueError if no sample has finite logits.
    """
    right = np.concatenate([hits.right for hits in values], axis=2)  # [C, S, N]
    evaluated = np.concatenate([hits.evaluated for hits in values], axis=1)  # [C, N]
    if not right.shape[2]:
        raise ValueError("no sample has finite logits, even with all heads: choose another precision")
    samples = np.array([name for hits in values for name in hits.samples])
    order = np.argsort(samples)  # so that sums do not depend on the cuts into batches
    points: list[Row] = []
    for curve, curve_right, of_curve in zip(part.inputs, right, evaluated, strict=True):
        kept = order[of_curve[order]]
        if len(kept):
            points += _points(curve, curve_right[:, kept], values[0].removed, samples[kept].tolist())
    return Made(pa.Table.from_pylist(points, schema=SCHEMA), splits=sum(hits.splits for hits in values))


def _points(curve: RemovalOrder, right: np.ndarray, removed: np.ndarray, samples: Sequence[str]) -> Iterator[Row]:
    """Yield a row of schema PRUNING for each point of a curve.

    `right` [S, N], `removed` [S]; lists stand in the first row.
    """
    accuracy = right.sum(1) / right.shape[1]
    of_curve: dict[str, Any] = {"method": curve.method, "pooling": curve.pooling, "order": curve.order}
    of_curve |= {"seed": curve.seed, "half": curve.half}
    of_curve |= {"n": len(samples), "area": float(area(accuracy, removed))}
    of_samples = {"samples": list(samples), "areas": area(right.T.astype(np.float64), removed).tolist()}
    before = [0, *removed[:-1].tolist()]
    for step, (start, end) in enumerate(zip(before, removed.tolist(), strict=True)):
        point = {"step": step, "pruned_heads": curve.heads[start:end], "accuracy": float(accuracy[step])}
        yield of_curve | point | (of_samples if step == 0 else {"samples": None, "areas": None})


def _conclude(run: Run, node: PruningNode, shards: Sequence[str]) -> dict[str, Any]:
    """Entries of the manifest: the head relevance that ordered the heads, and the number of samples that were used."""
    counts = [run.store.read(path, SCHEMA, ["n"])["n"].to_pylist() for path in shards]
    used = max(itertools.chain(*counts), default=0)  # 0: no curve evaluates a sample
    return {"heads": None if node.method == RANDOM else node.heads.name, "samples": used}


PRUNING = Product(
    name="pruning",
    title="sets of curves",
    stage="prune",
    nodes=nodes,
    schema=lambda dtype: SCHEMA,
    units=units,
    compute=compute,
    combine=combine,
    conclude=_conclude,
)
