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
from closelook.jobs.store import Ledger, Store, StoreError, artifact_in
from closelook.jobs.store.manifests import CONFIGS, HASHES
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
    for name, record in (ledger := Ledger(store)).records():
        artifact = artifact_in(record)
        folders = [*artifact.folders, (artifact.rejects or "").rpartition("/")[0]]
        hashes = ledger.hashes(record)
        for folder, sizes, rows in zip(folders, record["bytes"], record["file_rows"], strict=False):
            for file, size in sizes.items():
                path = f"{folder}/{file}"
                listed[path] = name
                data = store.read_bytes(path)
                assert size == len(data)
                assert hashes[path] == hashlib.sha256(data).hexdigest()
                if path.endswith(".parquet"):
                    assert rows[file] == pq.read_metadata(root.folder / path).num_rows
    unlisted = (
        "manifest/",
        "configs/",
        "hashes/",
        "runtime/",
        "runs/",
        "logs/",
        "config.yaml",
        "format.json",
        "known.json",
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
    for _, record in (ledger := Ledger(store)).records("relevance"):
        for path, sha256 in ledger.hashes(record).items():
            assert hashlib.sha256(store.read_bytes(path)).hexdigest() != sha256


def test_works_share_a_file_of_hashes_and_all_a_configuration(root):
    """One file for each closing of a work, however many nodes it closes."""
    records = [record for _, record in Ledger(Store(str(root.folder))).records()]
    assert {record["config"] for record in records} == {path.stem for path in (root.folder / CONFIGS).iterdir()}
    assert len({record["config"] for record in records}) == 1
    of_relevance = {record["hashes"] for record in records if record["artifact"]["product"] in ("relevance", "heads")}
    assert len(of_relevance) == 1
    assert {record["hashes"] for record in records} == {path.stem for path in (root.folder / HASHES).iterdir()}
    of_cells = [path.stat().st_size for path in root.manifests() if path.name.startswith("relevance.")]
    assert max(of_cells) < 3000


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


def test_whoever_reads_a_flipped_page_is_told_and_leaves_a_note(root):
    lost = root.files(RANDOM)[0]
    flip(lost)
    assert root.command("status")[0] == 0, "its size is what it was"
    with pytest.raises(StoreError, match=re.escape(str(lost)) + r" cannot be read, .* --root .* computes it again"):
        front.load(str(root.folder)).relevance("arrow", tokens=False)
    code, printed = root.command("status")
    assert code == 1
    assert f"{lost} cannot be read, " in printed
    assert "1 damaged" in printed


# audit --deep, and what a run makes again


@pytest.mark.thinned(4)
@pytest.mark.parametrize(
    ("pattern", "made_again"),
    [
        ("heads/*/*/*/method=gradient_x_input", {"attribute": 1, "prune": 1}),
        (RANDOM, {"attribute": 1, "evaluate": 1, "perturb": 1}),
        ("curves/*/*/*/method=random", {"perturb": 1}),
        ("pruning/*/*/*", {"prune": 1}),
        ("scores", {"evaluate": 1}),
        ("scores_samples", {"evaluate": 1}),
        ("benchmark/views/*/*", {"prepare": 1}),
        ("benchmark/generic/*", {"prepare": 2}),
    ],
)
def test_a_flipped_bit_is_found_by_a_deep_audit_and_a_run_makes_again_what_was_made_of_the_file(
    root, pattern, made_again
):
    before, lost = root.contents(), root.files(pattern)[0]
    assert root.command("audit", "--deep")[0] == 0
    flip(lost)
    if not pattern.startswith("benchmark"):
        assert root.command("status")[0] == 0, "sizes are what they were"
    code, printed = root.command("audit", "--deep")
    if not pattern.startswith("benchmark"):
        assert (code, f"{lost} has other bytes than were written" in printed) == (1, True)
    assert root.command("status")[0] in (1, 2)
    root.assert_made_again(before, **made_again)
    assert root.command("audit", "--deep")[0] == 0
    assert not list((root.folder / "damaged").iterdir())


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", [VERSION_KEY, NAME_KEY, b"explanation"])
def test_a_flipped_bit_in_the_names_of_a_footer_is_found_and_healed(root, name):
    """The file can be read, and its schema is no schema of closelook."""
    before, (lost, *_) = root.contents(), root.files("heads/*/*/*/method=gradient_x_input")
    data = lost.read_bytes()
    assert name in data
    lost.write_bytes(data.replace(name, bytes([name[0] ^ 1]) + name[1:]))
    code, printed = root.command("audit", "--deep")
    assert (code, f"{lost} has other bytes than were written" in printed) == (1, True)
    root.assert_made_again(before, attribute=1, prune=1)
    assert root.command("audit", "--deep")[0] == 0


def test_samples_whose_footer_names_no_schema_are_noted_by_whoever_reads_them(root):
    before, (lost, *_) = root.contents(), root.files("benchmark/views/*/*")
    data = lost.read_bytes()
    lost.write_bytes(data.replace(VERSION_KEY, bytes([VERSION_KEY[0] ^ 1]) + VERSION_KEY[1:]))
    assert root.command("audit", "--deep")[0] == 1
    assert root.command("status")[0] == 1
    root.assert_made_again(before, prepare=1)


def test_a_page_of_the_report_that_is_lost_or_changed_is_written_again(root):
    page = root.folder / "report/index.html"
    whole = page.read_bytes()
    page.unlink()
    assert root.command("status")[0] == 1
    assert root.command("report")[0] == 0
    assert page.exists()
    flip(page)
    assert root.command("audit", "--deep")[0] == 1
    assert root.command("report")[0] == 0
    assert page.read_bytes()[:1000] == whole[:1000]
    assert root.command("audit", "--deep")[0] == 0


def test_what_was_made_of_a_lost_file_is_made_again_where_the_file_comes_out_otherwise(root):
    """As on another machine: the hash that was listed is not that of the file that is made again."""
    ledger, lost = Ledger(Store(str(root.folder))), root.files(RANDOM)[0]
    [path] = {root.folder / HASHES / f"{record['hashes']}.json" for _, record in ledger.records("relevance")}
    text = path.read_text().replace(hashlib.sha256(lost.read_bytes()).hexdigest(), "0" * 64)
    path.unlink()
    other = path.with_name(hashlib.sha256(text.encode()).hexdigest()[:16] + ".json")
    other.write_text(text)
    for manifest in root.manifests():
        manifest.write_text(manifest.read_text().replace(path.stem, other.stem))
    before = root.contents()
    lost.unlink()
    root.assert_made_again(before, attribute=1, evaluate=1, perturb=1)


def test_manifests_without_hashes_are_unverified_and_not_damaged(root):
    root.change_manifests("*", "hashes", "file_rows")
    count = len(root.manifests())
    flip(root.files(RANDOM)[0])
    code, printed = root.command("status")
    assert code == 0
    assert f"{count} artifacts are unverified: an older version wrote them, without hashes" in printed
    code, printed = root.command("audit", "--deep")
    assert code == 0
    assert "0 files of 0 artifacts were read" in printed
    assert f"{count} artifacts are unverified" in printed


def test_a_changed_file_of_hashes_makes_artifacts_unverified_and_nothing_else(root):
    for path in (root.folder / HASHES).iterdir():
        flip(path)
    code, printed = root.command("audit", "--deep")
    assert code == 0
    assert f"{len(root.manifests())} artifacts are unverified: the side file with their hashes is lost" in printed
    root.assert_made_again(root.contents())


def test_gc_removes_side_files_that_no_manifest_names(root):
    kept = {path for folder in (CONFIGS, HASHES) for path in (root.folder / folder).iterdir()}
    for folder in (CONFIGS, HASHES):
        (root.folder / folder / "0123456789abcdef.json").write_text("{}")
    assert root.command("gc")[0] == 0
    assert {path for folder in (CONFIGS, HASHES) for path in (root.folder / folder).iterdir()} == kept
