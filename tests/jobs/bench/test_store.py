"""Requests of an object store grow with the samples, not with their square, and reports say what cells are made of."""

import pytest

from benchmarks import store
from benchmarks.parts.stores import matrix
from benchmarks.parts.stores.listed_store import PAGE, listed_store
from benchmarks.parts.stores.many_artifacts import complete_root
from benchmarks.parts.stores.object_store import object_store
from closelook.jobs.commands.roots.status import status
from closelook.jobs.store import Store


def requests_of(server, rows: int) -> int:
    """Of one model's cells of some methods over so many samples of a task."""
    config = matrix.matrix_config(server.root(str(rows)), shard_rows=8, models=1)
    (task, *_) = config.tasks
    few = {"methods": config.methods[:3], "tasks": {task: config.tasks[task]}, "heads": {task: None}}
    config = config.model_copy(update=few)
    root = Store(config.root)
    matrix.prepare(config, root, rows)
    server.requests = 0
    matrix.attribute(config, root)
    return server.requests


def test_twice_the_samples_make_at_most_twice_the_requests():
    with object_store() as server:
        few, many = requests_of(server, 16), requests_of(server, 32)
        assert few < many <= 2 * few


def test_the_matrix_has_the_units_of_the_published_samples():
    config = matrix.matrix_config("runs/paper", shard_rows=256)
    precisions, of_heads = 9 + 3, 4 + 4 + 1  # three models run in both
    assert store.published_units(config) == precisions * (4 + 118 + 157) + 9 * of_heads


def test_a_look_at_complete_artifacts_reads_little_and_lists_once():
    config, objects, artifacts = complete_root(2)
    assert artifacts > 1000
    with listed_store(objects) as served:
        root = Store(config.root)
        assert status(config, root)
        listed = [path for path in objects if "/manifest/" in path and path.endswith(".json")]
        assert served.requests <= 30 + len(objects) / PAGE + 2 * len(listed), "each manifest is read once"
        assert served.listings <= 15 + len(objects) / PAGE, f"{len(listed)} manifests are listed once"


@pytest.mark.parametrize("size", [100, 2_000_000])
def test_a_small_file_is_one_request_to_write_and_two_to_read_and_a_large_one_comes_in_parts(size):
    with object_store() as server:
        root = Store(server.root("files"))
        server.requests = 0
        root.write_bytes("file", bytes(size))
        assert server.requests == 1
        assert len(root.read_bytes("file")) == size
        assert server.requests == 3
