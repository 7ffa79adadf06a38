"""Shards of an unfinished artifact count where their footers name what they are."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from closelook.evaluation.schema import RELEVANCE
from closelook.jobs.config import RunConfig
from closelook.jobs.plan.node import Node, Part
from closelook.jobs.runner import driver
from closelook.jobs.runner.worker import Worker
from closelook.jobs.store import Ledger, Store, artifact_in
from tests.jobs.small import config_of, prepared, relevance_of, rows_of
from tests.stages import attribute

ROWS = rows_of(24)
RANDOM = "relevance/*/*/*/method=random"


class _Interrupted(Worker):
    """Commits its first two units and cannot write a third."""

    def __call__(self, table):
        self.units = getattr(self, "units", 0) + 1
        if self.units > 2:
            self._run = self._lost
        return super().__call__(table)

    def _lost(self, task, rows):
        raise OSError("connection lost")


def _shards_of_killed_run(config: RunConfig, store: Store, monkeypatch) -> list[Path]:
    """The two shards of random relevance that a run left whose driver was killed."""
    with monkeypatch.context() as patch:
        patch.setattr(driver, "Worker", _Interrupted)
        assert not attribute(config, store).complete
    root = Path(config.root)
    for manifest in (root / "manifest").glob("relevance.*"):
        manifest.unlink()
    shards = sorted(root.glob(f"{RANDOM}/*.parquet"))
    assert len(shards) == 2
    return shards


def _renamed(table: pa.Table, **footer: str | None) -> pa.Table:
    """The table with other entries in its footer; None takes one out."""
    named = {**table.schema.metadata, **{f"closelook.{k}".encode(): v and v.encode() for k, v in footer.items()}}
    return table.replace_schema_metadata({name: value for name, value in named.items() if value is not None})


@pytest.mark.parametrize(
    ("footer", "rows", "is_kept"),
    [
        ({}, None, True),
        ({"key": "0" * 64}, None, False),
        ({"unit": "00009-00000000"}, None, False),
        ({"key": None, "unit": None, "rows": None}, None, False),
        ({}, 3, False),
    ],
    ids=["its own", "another key", "another unit", "no key", "other rows"],
)
def test_a_shard_of_an_unfinished_artifact_counts_where_its_footer_names_key_unit_and_rows(
    footer, rows, is_kept, expected, tmp_path, model, inline, monkeypatch
):
    config = config_of(tmp_path / "root", model)
    store = prepared(config, ROWS)
    shards = _shards_of_killed_run(config, store, monkeypatch)
    table = pq.read_table(shards[0], partitioning=None)
    pq.write_table(_renamed(table.slice(0, rows), **footer), shards[0], compression=None)
    others = {path: path.stat().st_mtime_ns for path in shards}
    assert attribute(config, store).complete
    assert relevance_of(config, store) == expected
    assert [path.stat().st_mtime_ns == others[path] for path in shards] == [is_kept, True]


def test_the_origin_of_a_shard_is_the_part_that_it_was_written_for(tmp_path, model, inline):
    config = config_of(tmp_path / "root", model)
    store = prepared(config, ROWS)
    assert attribute(config, store).complete
    for _, record in Ledger(store).records("relevance"):
        artifact = artifact_in(record)
        for name in record["shards"]:
            unit = name.removeprefix(f"{artifact.key[:12]}-").removesuffix(".parquet")
            shard = store.read_committed(f"{artifact.folder}/{name}", RELEVANCE)
            assert shard.origin == Part(Node(artifact=artifact), unit).origin
