"""The simulated schedule: no less than the bound, no GPU used twice, and what more workers bring."""

import pytest

from benchmarks.job import MIXED
from benchmarks.parts.simulation import START_S, PoolWork, paper_jobs, simulate
from closelook.jobs.cluster.slots import Share
from closelook.jobs.commands.roots.plan_costs import FLOPS, SLOW_FLOAT64
from closelook.jobs.config import NodesConfig, RunConfig

SLOWER = FLOPS["float64"] / SLOW_FLOAT64
FAST = (("float64", "fast"),)


def pool(model, most_workers, *seconds, dtypes=(), labels=()):
    """The work of a model, by default in single precision on a whole GPU."""
    units = zip(dtypes or ["float32"] * len(seconds), seconds, strict=True)
    return PoolWork(model, most_workers, tuple(units), Share(1, 0, labels))


def test_one_gpu_does_everything_one_after_the_other():
    schedule = simulate([pool("a", 8, 10, 10, 10, 10), pool("b", 8, 5, 5)], [NodesConfig(gpus=1)])
    assert schedule.makespan_s == pytest.approx(50 + 2 * START_S)
    assert schedule.utilisation == pytest.approx(50 / schedule.makespan_s)
    assert schedule.last == "b"


def test_a_model_bound_to_few_workers_is_the_tail():
    jobs = [pool("long", 1, *[100.0] * 10), pool("short", 1, 1.0)]
    schedule = simulate(jobs, [NodesConfig(gpus=2)])
    assert schedule.makespan_s == pytest.approx(1000 + START_S)
    assert schedule.tail_s == pytest.approx(999)
    assert schedule.last == "long"


@pytest.mark.parametrize("gpus", [8, 64])
def test_the_paper_keeps_most_gpus_busy(gpus):
    schedule = simulate(paper_jobs({}, RunConfig.load("paper")), [NodesConfig(gpus=gpus)])
    assert schedule.lower_bound_s <= schedule.makespan_s <= 1.25 * schedule.lower_bound_s
    assert schedule.utilisation > 0.8


def test_a_unit_takes_as_long_as_its_gpu_needs_for_its_precision():
    job = pool("a", 1, 10, 10, dtypes=("float64", "float32"))
    for labels, factor in (({}, 1), ({"float64": "slow"}, SLOWER), ({"ray.io/accelerator-type": "L4"}, SLOWER)):
        schedule = simulate([job], [NodesConfig(gpus=1, labels=labels)])
        assert schedule.makespan_s == pytest.approx(START_S + 10 * factor + 10)
        assert schedule.lower_bound_s == pytest.approx(10 * factor + 10)
    nodes = NodesConfig(gpus=1, tflops={"float64": FLOPS["float64"] / 2e12})
    assert simulate([job], [nodes]).makespan_s == pytest.approx(START_S + 30)


def test_double_precision_waits_for_gpus_that_are_fast_at_it_and_others_leave_them():
    double = pool("double", 8, 10, 10, 10, 10, dtypes=("float64",) * 4, labels=FAST)
    single = pool("single", 1, 10, 10, 10, 10)
    schedule = simulate([single, double], list(reversed(MIXED)), [FAST])
    assert schedule.makespan_s == pytest.approx(START_S + 40), "each of the four has a fast GPU of its own"
    assert schedule.busy_s == pytest.approx(80)
    with pytest.raises(ValueError, match="that a worker of double needs"):
        simulate([single, double], MIXED[:1])


def test_the_papers_double_precision_costs_fewer_hours_of_mixed_gpus_where_it_is_fast():
    spent = {}
    for name, overrides in (("fast", ()), ("anywhere", ("ray.precisions={}",))):
        config = RunConfig.load("paper", overrides=overrides)
        schedule = simulate(paper_jobs({}, config), MIXED, [config.ray.needs(("float64",))])
        assert schedule.lower_bound_s <= schedule.makespan_s
        assert name == "anywhere" or schedule.makespan_s <= 1.25 * schedule.lower_bound_s
        spent[name] = schedule.busy_s
    assert spent["fast"] < 0.75 * spent["anywhere"]
