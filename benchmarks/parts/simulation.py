"""A simulation of the paper's run on more GPUs than this machine has: the real schedule with estimated durations."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from closelook.jobs.cluster.slots import Needs, Share, Slots, share_of
from closelook.jobs.commands.roots.plan_costs import FLOPS, flops_of
from closelook.jobs.config import ModelConfig, NodesConfig, RunConfig
from closelook.jobs.config.methods import configured
from closelook.jobs.geometries import Geometry, geometry_of
from closelook.jobs.plan.forwards import forwards

#: The cost of all passes divided by the cost of the gradients' passes, by kind of model (masked, causal) and task.
Relative = dict[tuple[str, str], float]
Unit = tuple[str, float]  # a unit's precision, and its seconds on the GPU that plans assume
START_S = 60.0  # until a model's pool computes: its processes start and load weights


@dataclass(frozen=True)
class PoolWork:
    """The units of one model that one pool of workers computes, in the order in which it computes them."""

    model: str
    most_workers: int
    units: tuple[Unit, ...]
    share: Share  # of a node, that each worker takes


@dataclass(frozen=True)
class Simulated:
    """The result of a simulated run."""

    makespan_s: float  # from the start to the end
    busy_s: float  # in which GPUs compute, summed over all GPUs
    utilisation: float  # the share of the time of all GPUs in which they compute
    tail_s: float  # from the time when a GPU is idle and no model waits for one, to the end
    last: str  # the model that ends last
    last_workers: int
    lower_bound_s: float  # see _bound_s


def paper_jobs(relative: Relative, config: RunConfig) -> list[PoolWork]:
    """The work of every model of a config such as `paper`, on all published samples.

    `relative` are measured costs; costs that it lacks are estimated from the number of forward passes.
    """
    jobs = []
    for model in config.models:
        geometry = geometry_of(model.id, model.shape)
        if geometry is None:
            continue
        units = list(_units(config, model, geometry, relative))
        for dtypes in config.together(dtype for dtype, _ in units):
            of_pool = tuple(unit for unit in units if unit[0] in dtypes)
            share = share_of(model, True, config.ray.needs(dtypes))
            jobs.append(PoolWork(config.pool_name(model, dtypes), model.workers[1], of_pool, share))
    return jobs


def _units(config: RunConfig, model: ModelConfig, geometry: Geometry, relative: Relative) -> Iterator[Unit]:
    """Every unit of a model."""
    family = geometry.model_family
    known = configured(config)
    methods = [known[entry.name] for entry in config.methods_of(model)]
    possible = [method for method in methods if not method.missing(family.capabilities)]
    names = [method.name for method in possible]
    gradients = [method.name for method in possible if method.rules is not None]
    for task in config.tasks:
        samples, length = config.task(task).published
        measured = relative.get((family.kind.name, task))
        total = forwards(config, gradients, length) * measured if measured else forwards(config, names, length)
        operations = 2.0 * geometry.block_parameters * samples * length * total
        count = -(-samples // config.shard_rows)
        for dtype in model.dtypes_for(task):
            yield from [(dtype, operations / FLOPS[dtype] / count)] * count


def simulate(jobs: Sequence[PoolWork], nodes: Sequence[NodesConfig], precisions: Iterable[Needs] = ()) -> Simulated:
    """Simulates a run: each model in turn starts as soon as a GPU is free for it, with as many workers as fit.

    A pool keeps its number of workers to its end. `precisions` say what nodes must offer for the precisions of the run.
    Raises ValueError if no kind of node can hold a worker of some model.
    """
    each = [kind for kind in nodes for _ in range(kind.count)]
    slots = Slots([(kind.labels, kind.gpus) for kind in each], (), precisions)
    if homeless := [job.model for job in jobs if not slots.room(job.share)]:
        raise ValueError(
            f"no kind of node has the GPUs and labels that a worker of {', '.join(homeless)} needs: add such nodes, or "
            "lower what these models ask for"
        )
    waiting = list(jobs)
    running: list[tuple[float, str, Share, list[int]]] = []  # a heap: the pool that ends first comes first
    now = busy = last_start = 0.0
    workers_end: list[float] = []
    while waiting or running:
        for job in list(waiting):
            taken = slots.take(job.share, 1, min(job.most_workers, len(job.units)))
            if taken is not None:
                waiting.remove(job)
                ends, spent = _pool(job, [each[node] for node in taken], now)
                busy += spent
                workers_end += ends
                last_start = now
                heapq.heappush(running, (max(ends), job.model, job.share, taken))
        now, last, share, released = heapq.heappop(running)
        slots.give_back(share, released)
    first_idle = min((end for end in workers_end if end >= last_start), default=now)
    utilisation = busy / (sum(kind.gpus for kind in each) * now)
    return Simulated(now, busy, utilisation, now - first_idle, last, len(released), _bound_s(jobs, each, slots))


def _pool(job: PoolWork, nodes: Sequence[NodesConfig], start: float) -> tuple[list[float], float]:
    """The times at which the pool's workers end, and the seconds that all compute together.

    Each unit goes to the worker that is free first.
    """
    free = [(start + START_S, worker) for worker in range(len(nodes))]
    spent = 0.0
    for unit in job.units:
        at, worker = free[0]
        unit_s = _on(unit, nodes[worker])
        spent += unit_s
        heapq.heapreplace(free, (at + unit_s, worker))
    return [end for end, _ in free], spent


def _on(unit: Unit, node: NodesConfig) -> float:
    """The seconds of a unit on a GPU of the node."""
    dtype, unit_s = unit
    return unit_s * FLOPS[dtype] / flops_of(node, dtype)


def _bound_s(jobs: Sequence[PoolWork], nodes: Sequence[NodesConfig], slots: Slots) -> float:
    """A number of seconds that no schedule can be shorter than.

    It assumes that every unit runs on the fastest GPU that it can run on. For all models together, and for each group
    of models that can run on the same nodes, their work is divided by the number of these nodes' GPUs; the largest
    result is the bound.
    """
    work: dict[tuple[int, ...], float] = defaultdict(float)
    everywhere = tuple(range(len(nodes)))
    for job in jobs:
        able = slots.able(job.share)
        kinds = {id(nodes[node]): nodes[node] for node in able}.values()
        least_s = sum(min(_on(unit, kind) for kind in kinds) for unit in job.units)
        for group in {tuple(sorted(able)), everywhere}:
            work[group] += least_s
    return max(spent / sum(nodes[node].gpus for node in group) for group, spent in work.items())
