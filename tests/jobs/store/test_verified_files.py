"""A root proves itself: files are listed with rows, bytes and hashes, and what is not as it was written is told."""

import hashlib
import random
import re
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import closelook as front
from closelook.evaluation.schema import HEADS
from closelook.evaluation.schema.versioned import NAME_KEY, VERSION_KEY
from closelook.jobs.runner import driver
from closelook.jobs.store import Ledger, Store, StoreError
from tests.jobs.small import config_of, prepared, rows_of
from tests.stages import attribute

RANDOM = "relevance/*/*/*/method=random"
TABLE = pa.Table.from_pylist(
    [{"sample_id": f"s{i}", "explanation": "target", "pooling": "none", "relevance": [i / 7, 2.0]} for i in range(40)],
    schema=HEADS,
)


def flip(path: Path, bit: int | None = None) -> None:
    """Change one bit, by default one in the middle."""
    data = bytearray(path.read_bytes())
    bit = len(data) * 4 if bit is None else bit
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


# what manifests list


def test_manifests_list_every_file_with_its_bytes_rows_and_hash(root):
    store, listed = Store(str(root.folder)), {}
    for name, record in Ledger(store).records():
        for path, file in record["files"].items():
            listed[path] = name
            data = store.read_bytes(path)
            assert file["bytes"] == len(data)
            assert file["sha256"] == hashlib.sha256(data).hexdigest()
            if path.endswith(".parquet"):
                assert file["rows"] == pq.read_metadata(root.folder / path).num_rows
    unlisted = (
        "manifest/",
        "runtime/",
        "logs/",
        "config.yaml",
    )
    stored = {path for path in store.files("", "", recursive=True) if not path.startswith(unlisted)}
    assert listed.keys() == stored
    assert {path.partition("/")[0] for path in stored} >= {"benchmark", "relevance", "scores_samples", "report"}


def test_the_worker_that_writes_a_file_computes_its_hash(tmp_path, model, inline, monkeypatch):
    """Bytes that change between the worker and the closing of its node are found: the driver hashes nothing."""
    closing = driver.ModelWork.close

    def late(work):
        for path in Path(work.run.store.root).glob("relevance/**/*.parquet"):
            flip(path)
        return closing(work)

    monkeypatch.setattr(driver.ModelWork, "close", late)
    config = config_of(tmp_path / "root", model)
    store = prepared(config, rows_of(10))
    assert attribute(config, store).complete
    for _, record in Ledger(store).records("relevance"):
        for path, file in record["files"].items():
            assert hashlib.sha256(store.read_bytes(path)).hexdigest() != file["sha256"]


# readers


def test_of_single_bit_flips_hardly_one_reads_back_as_other_data(store, tmp_path):
    store.write_shard("heads/a.parquet", TABLE, HEADS)
    path, draw = tmp_path / "root/heads/a.parquet", random.Random(0)
    whole, others = path.read_bytes(), 0
    for _ in range(600):
        flip(path, draw.randrange(8 * len(whole)))
        with suppress(StoreError, ValueError):  # other versions of schemas, too
            others += not store.read("heads/a.parquet", HEADS).equals(TABLE)
        path.write_bytes(whole)
    assert others <= 6, "without page checksums it is half of them"


def test_whoever_reads_a_flipped_page_is_told_what_to_do(root):
    lost = root.files(RANDOM)[0]
    flip(lost)
    assert root.command("status")[0] == 0, "its size is what it was"
    with pytest.raises(
        StoreError, match=re.escape(str(lost)) + r" cannot be read, .*: remove it, then .* computes it again"
    ):
        front.load(str(root.folder)).relevance("arrow", tokens=False)


# audit --deep, and what a run makes again


@pytest.mark.thinned(4)
@pytest.mark.parametrize(
    ("pattern", "made_again"),
    [
        ("heads/*/*/*/method=gradient_x_input", {"attribute": 1}),
        (RANDOM, {"attribute": 1}),
        ("curves/*/*/*/method=random", {"perturb": 1}),
        ("pruning/*/*/*", {"prune": 1}),
        ("scores", {"evaluate": 1}),
        ("scores_samples", {"evaluate": 1}),
        ("benchmark/views/*/*", {"prepare": 1}),
        ("benchmark/generic/*", {"prepare": 1}),
    ],
)
def test_a_deep_audit_finds_a_flipped_bit_and_a_run_makes_the_removed_file_again(root, pattern, made_again):
    before, lost = root.contents(), root.files(pattern)[0]
    assert root.command("audit", "--deep")[0] == 0
    flip(lost)
    if not pattern.startswith("benchmark"):
        assert root.command("status")[0] == 0, "sizes are what they were"
    code, printed = root.command("audit", "--deep")
    assert (code, f"{lost} has other bytes than were written: remove it" in printed) == (1, True)
    lost.unlink()
    root.assert_made_again(before, **made_again)
    assert root.command("audit", "--deep")[0] == 0


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", [VERSION_KEY, NAME_KEY, b"explanation"])
def test_a_flipped_bit_in_the_names_of_a_footer_is_found(root, name):
    """The file can be read, and its schema is no schema of closelook."""
    lost, *_ = root.files("heads/*/*/*/method=gradient_x_input")
    data = lost.read_bytes()
    assert name in data
    lost.write_bytes(data.replace(name, bytes([name[0] ^ 1]) + name[1:]))
    code, printed = root.command("audit", "--deep")
    assert (code, f"{lost} has other bytes than were written" in printed) == (1, True)


def test_a_page_of_the_report_that_is_lost_or_changed_is_written_again(root):
    page = root.folder / "report/index.html"
    whole = page.read_bytes()
    page.unlink()
    assert root.command("status")[0] == 1
    assert root.command("report")[0] == 0
    assert page.exists()
    flip(page)
    assert root.command("audit", "--deep")[0] == 1
    page.unlink()
    assert root.command("report")[0] == 0
    assert page.read_bytes()[:1000] == whole[:1000]
    assert root.command("audit", "--deep")[0] == 0
