"""A forgotten sample leaves no trace of its content in a root, changes no other number, and does not come back."""

import hashlib
import json
import shutil
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs.commands.roots.forget import rename_samples
from jobs.store import Ledger, Store
from jobs.store.forgotten import Forgotten, draw_of
from tests.jobs.store.roots import SAMPLES, VIEWS, Root, computed_in
from tests.jobs.store.roots import SETTINGS as FEW

SETTINGS = {
    **FEW,
    "methods": ["attnlrp", "random"],
    "prune": {"methods": ["attnlrp"], "random_runs": 1},
    "layers": {"sva": 8},
    "neurons": {"tasks": {"sva": 8}},
}
MEANS = {"scores", "layer_scores", "pruning", "writings"}


@pytest.fixture(scope="module")
def computed(tmp_path_factory) -> Path:
    """The root of a whole run."""
    return computed_in(tmp_path_factory.mktemp("computed"), SETTINGS)


@pytest.fixture
def root(computed, tmp_path, closelook, inline) -> Root:
    return Root(Path(shutil.copytree(computed, tmp_path / "root")), closelook, SETTINGS)


def rows(root: Root, pattern: str) -> list[dict]:
    return [row for path in root.files(pattern) for row in pq.read_table(path, partitioning=None).to_pylist()]


@pytest.fixture
def sample(root) -> dict:
    """A sample of which heads, layers, neurons and curves are kept, and whose text no other has."""
    times = Counter(row["text"] for row in rows(root, SAMPLES))
    kept = {row["sample_id"] for row in rows(root, "heads/*/*/*/*")}
    return next(row for row in rows(root, SAMPLES) if row["sample_id"] in kept and times[row["text"]] == 1)


def traces(root: Root, sample: dict, input_ids: list[int]) -> list[str]:
    """Files that hold the sample's id, its text or its tokens."""
    paths = []
    for path in filter(Path.is_file, root.folder.rglob("*")):
        data = path.read_bytes()
        if data[:4] == b"PAR1" and path.suffix == ".parquet":
            file = pq.ParquetFile(path)
            footer = b"".join(value for key, value in (file.metadata.metadata or {}).items() if key != b"ARROW:schema")
            data = repr(file.read().to_pylist()).encode() + footer
        if any(mark.encode() in data for mark in (sample["sample_id"], sample["text"], str(input_ids))):
            paths.append(str(path.relative_to(root.folder)))
    return paths


def tokens_of(root: Root, sample: dict) -> list[int]:
    return next(row["input_ids"] for row in rows(root, VIEWS) if row["sample_id"] == sample["sample_id"])


def keys(root: Root) -> dict[str, str]:
    return {name: record["key"] for name, record in Ledger(Store(str(root.folder))).records()}


def others(root: Root, product: str, sample: dict) -> pa.Table:
    """The rows of a product of all other samples."""
    kept = [row for row in rows(root, f"{product}/*/*/*/*") if row["sample_id"] != sample["sample_id"]]
    return pa.Table.from_pylist(kept)


def test_a_forgotten_sample_leaves_no_trace_and_all_else_keeps_its_key_and_numbers(root, sample):
    input_ids, before = tokens_of(root, sample), keys(root)
    products = ("relevance", "heads", "layers", "neurons", "curves")
    tables = {product: others(root, product, sample) for product in products}
    metrics = [row for row in rows(root, "scores_samples") if row["sample_id"] != sample["sample_id"]]
    for path in root.files(SAMPLES):  # a writer that was killed
        shutil.copy(path, path.with_name(f".tmp-0-{path.name}"))
    (root.folder / "report/left.html").write_text(sample["text"])  # of a report that was never complete
    assert len(traces(root, sample, input_ids)) > 10
    code, printed = root.command("forget", "--sample", sample["sample_id"])
    assert code == 0
    assert traces(root, sample, input_ids) == []
    for product in products:
        assert others(root, product, sample) == tables[product]
        assert f"removed from {product} gpt2/sva/float32/{'random' if product == 'layers' else 'attnlrp'}" in printed
    removed = {name for name in before if name.partition(".")[0] in MEANS} | {"report"}
    assert {name: key for name, key in before.items() if name not in removed} == keys(root)
    code, printed = root.command("status")
    assert code == 1
    assert "0 partial" in printed

    made = root.contents()
    assert root.command("run")[0] == 0
    assert traces(root, sample, input_ids) == []
    again = {path for path, content in root.contents().items() if made.get(path) != content}
    assert {path.partition("/")[0] for path in again} == {"scores", "scores_samples", "pruning"}
    assert rows(root, "scores_samples") == metrics
    for row in rows(root, "scores"):
        assert row["n"] <= 29
    assert {row["n"] for row in rows(root, "pruning/*/*/*") if row["half"] is None} == {7}
    assert {**before, "report": ""} == {**keys(root), "report": ""} | {
        name: before[name] for name in before if name.startswith(("scores.", "layer_scores."))
    }
    assert root.command("status")[0] == 0
    assert root.command("audit", "--deep")[0] == 0


def test_other_samples_keep_their_turns_and_no_hash_of_an_id_is_kept(root):
    samples = [row["sample_id"] for row in rows(root, SAMPLES)]
    in_order = sorted(samples, key=lambda sample: draw_of(7, sample))
    forgotten, seeds = Forgotten(), (7, "select:0")
    for gone in (in_order[:3], in_order[-2:], in_order[10:12], in_order[12:13]):
        every = [forgotten.placeholder(sample) or sample for sample in samples]
        forgotten = forgotten.with_samples(gone, every, seeds)
        names = [forgotten.placeholder(sample) or sample for sample in in_order]
        assert sorted(names, key=lambda name: forgotten.draw(7, name)) == names
    assert len(forgotten.ids) == len(set(forgotten.draws)) == 8
    assert forgotten.with_samples(in_order[:3], names, seeds) == forgotten, "it has them already"
    kept = json.dumps(asdict(forgotten))
    for sample in in_order:
        plain = [hashlib.sha256(text.encode()).hexdigest() for text in (sample, f"7:{sample}", f"select:0:{sample}")]
        assert not any(digest[:12] in kept for digest in plain)


def test_only_ids_of_samples_are_renamed_in_records_of_runs(tmp_path):
    store = Store(str(tmp_path))
    failure = (
        "model m: lrp failed: sample {} and 3 others: 7 tokens of sample 70; 7 x model_error, as {}: 7 is too long"
    )
    settings = {"seed": "7", "samples": 7, "tasks": ["7"], "path": "sample 7"}

    def record(sample: str) -> dict:
        failures = [failure.format(sample, sample), f"sample {sample}."]
        return {"config": settings, "failures": failures, "sample_ids": [sample, "70"], "sample": sample}

    store.write_bytes("runs/a.json", json.dumps(record("7"), indent=1).encode())
    store.write_bytes("runs/LATEST.md", f"7 failures\n* {failure.format('7', '7')}\n".encode())
    lines = [{"rows": 7, "unit": "7", "error": "sample 7: lost"}, {"rows": 7, "error": ""}]
    store.write_bytes("logs/t/0.jsonl", "".join(f"{json.dumps(line)}\n" for line in lines).encode())
    store.write_bytes("attempts/relevance.json", b'{"running": "row 7|lrp"}')
    rename_samples(store, {"7": "forgotten-0"})
    assert json.loads(store.read_bytes("runs/a.json")) == record("forgotten-0")
    expected = f"7 failures\n* {failure.format('forgotten-0', 'forgotten-0')}\n"
    assert store.read_bytes("runs/LATEST.md").decode() == expected
    lines[0]["error"] = "sample forgotten-0: lost"
    assert [json.loads(line) for line in store.read_bytes("logs/t/0.jsonl").splitlines()] == lines
    assert not store.exists("attempts/relevance.json")


def test_a_later_run_does_not_bring_it_back(root, sample):
    input_ids = tokens_of(root, sample)
    assert root.command("forget", "--sample", sample["sample_id"])[0] == 0
    assert root.command("run")[0] == 0
    relevance = {path: path.stat().st_mtime_ns for path in root.files("relevance/*/*/*/*")}
    for path in (*root.files(SAMPLES), *root.files(VIEWS)):
        path.unlink()
    code, printed = root.command("run", "--set", "methods=[attnlrp,random,gradient_x_input]")
    assert code == 0, printed
    assert traces(root, sample, input_ids) == []
    assert {path: path.stat().st_mtime_ns for path in relevance} == relevance, "keys are those that they were"
    new = next(record for name, record in Ledger(Store(str(root.folder))).records("relevance") if "gradient" in name)
    assert (new["rows"], new["explained"], new["rejects"]) == (30, 29, {"forgotten": 1})
    assert len(rows(root, SAMPLES)) == 30


def test_what_is_shown_and_exported_has_no_placeholders(root, sample, tmp_path):
    import closelook as front

    assert root.command("forget", "--sample", sample["sample_id"])[0] == 0
    run = front.load(str(root.folder))
    assert len(run.samples()) == len(run.views()) == 29
    code, _ = root.command("export", "--to", str(tmp_path / "exported"))
    assert code == 0
    assert "forgotten-" not in "".join(path.read_text(errors="ignore") for path in (tmp_path / "exported").rglob("*.*"))
    assert root.command("audit")[0] == 0


def test_an_unknown_sample_is_refused_and_nothing_changes(root):
    before = root.contents()
    code, printed = root.command("forget", "--sample", "nobody")
    assert code == 2
    assert "holds no sample nobody" in printed
    assert printed.count("\n") == 1
    assert root.contents() == before
    assert not (root.folder / "forgotten.json").exists()


def test_forgetting_that_was_interrupted_goes_on(root, sample, monkeypatch):
    input_ids, commits = tokens_of(root, sample), []

    def commit(self, *arguments, **named):
        commits.append(arguments)
        if len(commits) == 3:
            raise OSError("connection lost")
        return kept(self, *arguments, **named)

    kept = Ledger.commit
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "commit", commit)
        assert "connection lost" in root.command("forget", "--sample", sample["sample_id"])[1]
    assert traces(root, sample, input_ids)
    assert root.command("forget", "--sample", sample["sample_id"])[0] == 0
    assert traces(root, sample, input_ids) == []
    assert root.command("run")[0] == 0
    record = json.loads((root.folder / "forgotten.json").read_text())
    assert len(record["ids"]) == 1
    assert sample["sample_id"] not in json.dumps(record)
