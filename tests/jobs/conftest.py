"""One local Ray for all the tests of a module."""

import pytest

from jobs.config import RunConfig
from jobs.pools import connect


@pytest.fixture(scope="module")
def local_ray():
    """Ray inside this process, on two CPUs and loopback only."""
    connect(RunConfig.load("smoke"))
    import ray

    yield ray
    ray.shutdown()
