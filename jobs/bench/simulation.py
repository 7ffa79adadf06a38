"""The paper's matrix on more GPUs than there are here: the planner's own schedule, with estimated unit times."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from jobs.cluster.pools import Share, Slots
from jobs.commands.plan import FLOPS, forwards
from jobs.config import RunConfig
from jobs.methods import configured
from jobs.plan.geometries import geometry_of

#: Cost of all passes over that of the gradients' pass, by kind of model (masked, causal) and task.
Relative = dict[tuple[str, str], float]
START_S = 60.0  # of a model's pool: processes, weights
SHARE = Share(1, 0)


@dataclass(frozen=True)
class PoolWork:
    """A model's units, in the order in which its pool computes them."""

    model: str
    most_workers: int
    unit_s: tuple[float, ...]


@dataclass(frozen=True)
class Simulated:
    """What a schedule gives. The tail is the time from the first idle GPU with no model waiting to the end."""

    makespan_s: float
    utilisation: float  # busy share of all GPUs until the end
    tail_s: float
    last: str  # the model that ends last
    last_workers: int
    lower_bound_s: float  # all work over all GPUs


def paper_jobs(relative: Relative | None = None, workers: int | None = None) -> list[PoolWork]:
    """The nine models of the config `paper` over all published samples; `workers` in place of each model's most.

    `relative` are measured costs of all passes over that of the gradients; what is not measured is estimated.
    """
    config = RunConfig.load("paper")
    methods = configured(config)
    jobs = []
    for model in config.models:
        geometry = geometry_of(model.id)
        if geometry is None:
            continue
        family = geometry.model_family
        wanted = [methods[entry.name] for entry in config.methods_of(model)]
        names = [method.name for method in wanted if not method.missing(family.capabilities)]
        gradients = [name for name in names if methods[name].rules is not None]
        units: list[float] = []
        for task in config.tasks:
            samples, length = config.task(task).published
            measured = relative and relative[family.kind.name, task]
            total = forwards(config, gradients, length) * measured if measured else forwards(config, names, length)
            for dtype in model.dtypes_for(task):
                operations = 2.0 * geometry.block_parameters * samples * length * total
                count = -(-samples // config.shard_rows)
                units += [operations / FLOPS[dtype] / count] * count
        jobs.append(PoolWork(model.name, workers or model.workers[1], tuple(units)))
    return jobs


def simulate(jobs: list[PoolWork], gpus: int) -> Simulated:
    """Start every model, in order, when a GPU is free for it, with as many workers as fit; pools keep their size."""
    slots = Slots([({}, float(gpus))])
    waiting = list(jobs)
    ends: list[tuple[float, str, list[int]]] = []
    now = busy = 0.0
    workers_end: list[float] = []
    last_start = 0.0
    while waiting or ends:
        for job in list(waiting):
            taken = slots.take(SHARE, 1, min(job.most_workers, len(job.unit_s)))
            if taken is not None:
                waiting.remove(job)
                finished = _pool(job, len(taken), now)
                busy += sum(job.unit_s)
                workers_end += finished
                last_start = now
                heapq.heappush(ends, (max(finished), job.model, taken))
        now, last, released = heapq.heappop(ends)
        slots.give_back(SHARE, released)
    first_idle = min((end for end in workers_end if end >= last_start), default=now)
    bound_s = sum(sum(job.unit_s) for job in jobs) / gpus
    return Simulated(now, busy / (gpus * now), now - first_idle, last, len(released), bound_s)


def _pool(job: PoolWork, workers: int, start: float) -> list[float]:
    """When each worker of the pool ends: units go to whoever is free."""
    free = [start + START_S] * workers
    for unit_s in job.unit_s:
        heapq.heappush(free, heapq.heappop(free) + unit_s)
    return free
