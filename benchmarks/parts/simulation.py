"""The paper's matrix on more GPUs than this machine has: the planner's schedule with estimated durations."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from jobs.cluster.labels import Needs
from jobs.cluster.slots import Share, Slots, share_of
from jobs.commands.roots.plan_speeds import FLOPS, flops_of
from jobs.config import ModelConfig, NodesConfig, RunConfig
from jobs.config.methods import configured
from jobs.geometries import Geometry, geometry_of
from jobs.plan.forwards import forwards

#: Cost of all passes over that of the gradients' pass, by kind of model (masked, causal) and task.
Relative = dict[tuple[str, str], float]
START_S = 60.0  # of a model's pool: processes, weights
WHOLE = Share(1, 0)


@dataclass(frozen=True)
class PoolWork:
    """The units of a model in precisions that share workers, in the order in which its pool computes them."""

    model: str
    most_workers: int
    unit_s: tuple[float, ...]  # on the GPU that plans assume
    dtypes: tuple[str, ...] = ()  # of each unit; none: every GPU is as that one
    share: Share = WHOLE


@dataclass(frozen=True)
class Simulated:
    """The outcome of a schedule. The tail is the time from the first idle GPU with no model waiting to the end."""

    makespan_s: float
    busy_s: float  # of all GPUs together
    utilisation: float  # busy share of all GPUs until the end
    tail_s: float
    last: str  # the model that ends last
    last_workers: int
    #: All work, each unit as on the fastest GPU that will do, over all GPUs; of models that need the same, over those.
    lower_bound_s: float


def paper(*overrides: str) -> RunConfig:
    """The config `paper`, or with `--set`'s overrides."""
    return RunConfig.load("paper", overrides=overrides)


def paper_jobs(relative: Relative | None = None, config: RunConfig | None = None) -> list[PoolWork]:
    """The models of the config, by default the nine of `paper`, over all published samples.

    `relative` are measured costs of all passes over that of the gradients; what is not measured is estimated.
    """
    config = config or paper()
    jobs = []
    for model in config.models:
        geometry = geometry_of(model.id, model.shape)
        if geometry is None:
            continue
        units = list(_units(config, model, geometry, relative or {}))
        for dtypes in config.together(dtype for dtype, _ in units):
            of_pool = [unit for unit in units if unit[0] in dtypes]
            share = share_of(model, True, config.ray.needs(dtypes))
            seconds = tuple(unit_s for _, unit_s in of_pool)
            precisions = tuple(dtype for dtype, _ in of_pool)
            jobs.append(PoolWork(config.pool_name(model, dtypes), model.workers[1], seconds, precisions, share))
    return jobs


def _units(
    config: RunConfig, model: ModelConfig, geometry: Geometry, relative: Relative
) -> Iterator[tuple[str, float]]:
    """(precision, seconds on the GPU that plans assume) of every unit of a model."""
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
    """Start every model, in order, when a GPU is free for it, with as many workers as fit; pools keep their size.

    `precisions` are what the precisions of the run need. Raises ValueError for a model that no node will do for.
    """
    each = [kind for kind in nodes for _ in range(kind.count)]
    slots = Slots([(kind.labels, kind.gpus) for kind in each], (), precisions)
    if homeless := [job.model for job in jobs if not slots.room(job.share)]:
        raise ValueError(f"no node will do for {', '.join(homeless)}")
    waiting = list(jobs)
    running: list[tuple[float, str, Share, list[int]]] = []  # by their ends
    now = busy = last_start = 0.0
    workers_end: list[float] = []
    while waiting or running:
        for job in list(waiting):
            taken = slots.take(job.share, 1, min(job.most_workers, len(job.unit_s)))
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
    """The end of each worker of the pool, and the seconds that all compute: units go to the first free worker."""
    free = [(start + START_S, worker) for worker in range(len(nodes))]
    spent = 0.0
    for unit in range(len(job.unit_s)):
        at, worker = free[0]
        unit_s = _on(job, unit, nodes[worker])
        spent += unit_s
        heapq.heapreplace(free, (at + unit_s, worker))
    return [end for end, _ in free], spent


def _on(job: PoolWork, unit: int, node: NodesConfig) -> float:
    """Seconds of a unit on a GPU of the node."""
    if not job.dtypes:
        return job.unit_s[unit]
    return job.unit_s[unit] * FLOPS[job.dtypes[unit]] / flops_of(node, job.dtypes[unit])


def _bound_s(jobs: Sequence[PoolWork], nodes: Sequence[NodesConfig], slots: Slots) -> float:
    """No schedule is shorter: neither for all models, nor for those that go to the same nodes."""
    work: dict[tuple[int, ...], float] = defaultdict(float)
    everywhere = tuple(range(len(nodes)))
    for job in jobs:
        able = slots.able(job.share)
        kinds = {id(nodes[node]): nodes[node] for node in able}.values()
        least_s = sum(min(_on(job, unit, kind) for kind in kinds) for unit in range(len(job.unit_s)))
        for group in {tuple(sorted(able)), everywhere}:
            work[group] += least_s
    return max(spent / sum(nodes[node].gpus for node in group) for group, spent in work.items())
