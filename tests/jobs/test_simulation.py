"""The simulated schedule: no less than the bound, no GPU used twice, and what more workers bring."""

import pytest

from jobs.bench.simulation import START_S, PoolWork, paper_jobs, simulate


def test_one_gpu_does_everything_one_after_the_other():
    found = simulate([PoolWork("a", 8, (10.0,) * 4), PoolWork("b", 8, (5.0,) * 2)], gpus=1)
    assert found.makespan_s == pytest.approx(50 + 2 * START_S)
    assert found.utilisation == pytest.approx(50 / found.makespan_s)
    assert found.last == "b"


def test_a_model_bound_to_few_workers_is_the_tail():
    jobs = [PoolWork("long", 1, (100.0,) * 10), PoolWork("short", 1, (1.0,))]
    found = simulate(jobs, gpus=2)
    assert found.makespan_s == pytest.approx(1000 + START_S)
    assert found.tail_s == pytest.approx(999)
    assert found.last == "long"


@pytest.mark.parametrize("gpus", [8, 64])
def test_the_paper_keeps_most_gpus_busy(gpus):
    found = simulate(paper_jobs(), gpus)
    assert found.lower_bound_s <= found.makespan_s <= 1.25 * found.lower_bound_s
    assert found.utilisation > 0.8
