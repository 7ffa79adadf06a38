"""The store: atomic writes, checked reads, nothing outside the root."""

import errno
import os
import pickle
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from closelook.evaluation.schema import GENERIC, HEADS, SchemaMismatch
from closelook.jobs.store import TEMPORARY, Artifact, Ledger, Store, StoreError, StoreFull

TABLE = pa.Table.from_pylist(
    [{"sample_id": "a", "explanation": "target", "pooling": "none", "relevance": [1.0, 2.0]}], schema=HEADS
)


def test_a_shard_round_trips_with_its_schema(store):
    store.write_shard("heads/a.parquet", TABLE, HEADS)
    assert store.read("heads/a.parquet", HEADS) == store.read("heads", HEADS) == TABLE
    assert store.read("heads", HEADS).schema.metadata == HEADS.metadata


def test_reading_under_another_schema_says_which_file_holds_what(store):
    store.write_shard("heads/a.parquet", TABLE, HEADS)
    with pytest.raises(SchemaMismatch, match=r"heads/a.parquet holds schema heads v1, .* reads generic v"):
        store.read("heads/a.parquet", GENERIC)


def test_a_table_that_does_not_fit_its_schema_is_not_written(store):
    with pytest.raises((pa.ArrowInvalid, KeyError)):
        store.write_shard("heads/a.parquet", TABLE, GENERIC)
    assert store.files("heads") == []


def test_a_failed_write_leaves_nothing_visible_and_the_old_file_whole(store, monkeypatch):
    store.write_bytes("a.json", b"old")

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreFull, match="no space left under"):
        store.write_bytes("a.json", b"new")
    assert store.read_bytes("a.json") == b"old"
    assert store.temporaries() == []


def test_temporary_files_are_no_shards(store):
    store.write_shard("heads/a.parquet", TABLE, HEADS)
    store.write_bytes(f"heads/{TEMPORARY}b.parquet", b"half a shar")
    assert store.files("heads") == ["heads/a.parquet"]
    assert store.temporaries() == [f"heads/{TEMPORARY}b.parquet"]
    assert store.read("heads", HEADS) == TABLE


@pytest.mark.parametrize("path", ["../outside", "a/../../outside", "/etc/outside"])
def test_no_path_leads_out_of_the_root(store, path):
    with pytest.raises(StoreError, match="outside the root"):
        store.write_bytes(path, b"")


def test_a_link_does_not_lead_out_of_the_root(store, tmp_path):
    store.create()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "root" / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="outside the root"):
        store.write_bytes("link/a", b"")
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("root", ["/dev/null/run", "ftp://host/run"])
def test_an_unusable_root_is_one_line(root):
    with pytest.raises(StoreError, match=r"cannot (use|write to) the root"):
        Store(root).create()


def test_an_object_store_that_refuses_says_where_credentials_come_from(monkeypatch):
    def refuse(uri):
        raise OSError("AWS Error ACCESS_DENIED")

    monkeypatch.setattr("closelook.jobs.store.files.pafs", SimpleNamespace(FileSystem=SimpleNamespace(from_uri=refuse)))
    with pytest.raises(StoreError, match=r"ACCESS_DENIED \(credentials are AWS_ACCESS_KEY_ID and"):
        Store("s3://bucket/run")


def test_missing_things_are_told_apart(store):
    with pytest.raises(FileNotFoundError):
        store.read("heads", HEADS)
    assert store.manifest("nothing") is None
    assert store.files("nowhere") == []
    store.delete("nothing")


def test_a_folder_that_another_process_makes_meanwhile_is_listed(store, monkeypatch):
    """Arrow opens the folder, in vain, and then asks whether it exists: by then it does, and Arrow raises an error."""
    listed = store._fs.get_file_info

    def made_meanwhile(selector):
        monkeypatch.setattr(store, "_fs", SimpleNamespace(get_file_info=listed))
        os.makedirs(f"{store.root}/heads")
        raise FileNotFoundError(errno.ENOENT, "Cannot list directory")

    monkeypatch.setattr(store, "_fs", SimpleNamespace(get_file_info=made_meanwhile))
    assert store.files("heads") == []


def test_manifests_are_replaced_as_a_whole(store):
    store.write_manifest("b", {"n": 1, "files": {}, "long": "x" * 100})
    store.write_manifest("b", {"n": 2, "files": {}})
    store.write_manifest("a", {"n": 3, "files": {}})
    assert dict(Ledger(store).records()) == {"a": {"n": 3, "files": {}}, "b": {"n": 2, "files": {}}}
    assert dict(Ledger(store).records("b")) == {"b": {"n": 2, "files": {}}}


def test_only_complete_cells_are_read(store):
    cell = Artifact("heads", "m", "sva", "float32", "lrp", "0" * 64)
    store.write_shard(f"{cell.folder}/{cell.key[:12]}-0.parquet", TABLE, HEADS)
    with pytest.raises(StoreError, match="not complete"):
        Ledger(store).read(cell, HEADS)
    Ledger(store).commit(cell, {"shards": [f"{cell.key[:12]}-0.parquet"]})
    store.write_shard(f"{cell.folder}/ffff-0.parquet", TABLE, HEADS)
    assert Ledger(store).read(cell, HEADS) == TABLE, "shards of other keys do not count"


def test_a_store_travels_to_workers(store):
    store.write_bytes("a", b"1")
    assert pickle.loads(pickle.dumps(store)).read_bytes("a") == b"1"


def test_identifiers_have_dictionaries_and_fractions_do_not(store):
    store.write_shard("heads/a.parquet", TABLE, HEADS)
    group = pq.ParquetFile(store.url("heads/a.parquet")).metadata.row_group(0)
    encodings = {column.path_in_schema: set(column.encodings) for column in map(group.column, range(group.num_columns))}
    assert "RLE_DICTIONARY" in encodings["sample_id"]
    assert "BYTE_STREAM_SPLIT" in encodings["relevance.list.element"]
    assert "RLE_DICTIONARY" not in encodings["relevance.list.element"]


@pytest.mark.parametrize("root", ["s3://key:secret@bucket/run", "s3://bucket/run?secret_key=secret"])
def test_a_root_with_credentials_in_it_is_refused_without_naming_them(root):
    with pytest.raises(StoreError, match="environment") as refused:
        Store(root)
    assert "secret@" not in str(refused.value)
    assert "=secret" not in str(refused.value)
