"""An environment without network and with few threads; fixtures over tiny random models of every family."""

import os
import sys
from collections import Counter
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Servers of tests are on this machine, whatever proxy leads out of it.
os.environ.update({k: f"{os.environ.get(k, '')},127.0.0.1,localhost".lstrip(",") for k in ("NO_PROXY", "no_proxy")})

import pytest
import torch
from hypothesis import settings

from closelook.lrp_core import Batch, ModelView
from tests.tiny import TINY, ragged_rows, tiny_model

pytest_plugins = ("tests.external",)
QUICK = ("alti", "evaluation", "lrp_core")  # folders of files that take seconds

torch.set_num_threads(1)
settings.register_profile("unhurried", deadline=None)  # how long an example takes is the machine's
settings.load_profile("unhurried")


def pytest_addoption(parser):
    parser.addoption("--one-of", type=int, default=1, metavar="N", help="run one of every N selected tests of a file")


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config, items):
    """Puts files that take minutes first, so that none of them is left alone at the end of `make test`.

    Leaves most cases of `thinned` tests to the night. Fails if a test of Ray lies outside of tests/jobs, the only
    folder in which `make test` looks for them.
    """
    thin(items)
    items.sort(key=lambda item: item.path.relative_to(Path(__file__).parent).parts[0] in QUICK)
    jobs = Path(__file__).parent / "jobs"
    lost = [item.nodeid for item in items if item.get_closest_marker("ray") and jobs not in item.path.parents]
    if lost:
        raise pytest.UsageError(f"`make test` looks for tests of Ray under tests/jobs: move {', '.join(lost)}")
    result = yield  # `-m` selects
    left = set(not_chosen(items, config.option.one_of))
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item not in left]
    return result


def not_chosen(items, n):
    """All but one of every n tests of each file; of the next file, another one."""
    files = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    left = []
    for number, tests in enumerate(files.values()):
        chosen = number % min(n, len(tests))
        left += [item for at, item in enumerate(tests) if at % n != chosen]
    return left


def thin(items):
    """Marks as `nightly` all but one of every n cases of each test that is marked `thinned(n)`.

    It is a different one in each block of n, so that two parameters are met in many pairs, and in each test of a file:
    n tests with equal parameters meet every case together.
    """
    tests = {}
    for item in items:
        if item.get_closest_marker("thinned"):
            tests.setdefault((item.path, item.originalname), []).append(item)
    before = Counter()  # thinned tests of the file
    for (path, _), cases in tests.items():
        n = min(cases[0].get_closest_marker("thinned").args[0], len(cases))
        for at, case in enumerate(cases):
            if at % n != (at // n + before[path]) % n:
                case.add_marker(pytest.mark.nightly)
        before[path] += 1


def _has_ray() -> bool:
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


@pytest.fixture(autouse=True)
def starts_no_ray_unmarked(request):
    """Fail a test that starts a Ray in this process without the mark `ray`: it would run beside all later tests."""
    before = _has_ray()
    yield
    if _has_ray() and not before and not request.node.get_closest_marker("ray"):
        sys.modules["ray"].shutdown()
        pytest.fail("it started a Ray: mark it `ray`")


@pytest.fixture(params=sorted(TINY))
def family(request) -> str:
    """Every family in turn."""
    return request.param


@pytest.fixture
def view(family) -> ModelView:
    """A tiny float64 model of the family."""
    return tiny_model(family)


@pytest.fixture
def batch(view) -> Batch:
    """Three samples of different lengths, padded on the right."""
    return Batch.collate(ragged_rows(view), pad_id=0)


@pytest.fixture(scope="module")
def bucket(moto):
    """A bucket of moto, the S3 server of tests, with its address and credentials in the environment."""
    from benchmarks.object_store import BUCKET, object_store

    with object_store():
        yield BUCKET
