"""Files under a root that are really deleted, cut, added or swapped: every command says so, and a run makes them again.

Runs do without Ray, which plays no part in it.
"""

import os
import re
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file, save_file

from closelook.evaluation.benchmark.demo import model_dir
from closelook.jobs.config import RunConfig
from closelook.jobs.plan.cells import make_plan
from closelook.jobs.stages import run as stages
from closelook.jobs.store import Ledger, Store
from tests.jobs.store.roots import SAMPLES, VIEWS, Root


def delete(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def drop_rows(path: Path) -> None:
    """A whole file of fewer rows, as of another writer."""
    table = pq.read_table(path, partitioning=None)
    pq.write_table(table.slice(0, len(table) - 2), path)


# samples and their views


@pytest.mark.thinned(3)
@pytest.mark.parametrize("fault", [delete, cut, drop_rows])
def test_a_changed_view_shard_is_named_and_a_run_makes_it_again_and_nothing_else(root, fault):
    before, lost = root.contents(), root.files(VIEWS)[1]
    fault(lost)
    for command in ("status", "attribute", "evaluate", "audit"):
        code, printed = root.command(command)
        assert code == 1
        assert printed.count("\n") == 1
        assert str(lost) in printed
        assert printed.endswith(f"`closelook run --root {root.folder}` computes it again\n")
    root.assert_made_again(before, prepare=1)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("fault", [delete, cut])
def test_changed_samples_are_named_and_a_run_makes_them_again(root, fault):
    before, lost = root.contents(), root.files(SAMPLES)[1]
    fault(lost)
    code, printed = root.command("audit")
    assert (code, str(lost) in printed) == (1, True)
    root.assert_made_again(before, prepare=1)


def test_status_counts_samples_views_and_the_report(root):
    code, printed = root.command("status")
    assert code == 0, printed
    for product in ("benchmark", "views", "report"):
        assert re.search(rf"^.*\b{product} +1 +0 +0\b", printed, re.MULTILINE), printed
    next(iter((root.folder / "manifest").glob("report*"))).unlink()
    code, printed = root.command("status")
    assert code == 1
    assert "1 reports: 0 done, 0 partial, 1 missing" in printed


# what is computed of them


@pytest.mark.thinned(4)
@pytest.mark.parametrize(
    ("pattern", "stages", "fault"),
    [
        ("relevance/*/*/*/method=gradient_x_input", "attribute", delete),
        ("relevance/*/*/*/method=gradient_x_input", "attribute", cut),
        ("relevance/*/*/*/method=random", "attribute", drop_rows),
        ("heads/*/*/*/*", "attribute", cut),
        ("curves/*/*/*/method=random", "perturb", delete),
        ("curves/*/*/*/method=random", "perturb", cut),
        ("pruning/*/*/*", "prune", delete),
        ("scores", "evaluate", cut),
        ("scores_samples", "evaluate", delete),
    ],
)
def test_a_changed_shard_is_named_and_a_run_makes_its_artifact_again(root, pattern, stages, fault):
    before, lost = root.contents(), root.files(pattern)[0]
    fault(lost)
    code, printed = root.command("status")
    assert code == 1
    assert f"{lost} {'is gone' if fault is delete else 'has '}" in printed
    code, printed = root.command("audit")
    assert (code, str(lost) in printed) == (1, True)
    root.assert_made_again(before, **dict.fromkeys(stages.split(), 1))


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("name", "stage", "content"),
    [
        ("relevance.*random*", "attribute", b""),
        ("curves.*random*", "perturb", b'{"state": "com'),
        ("views.*", "prepare", b"[1]"),
    ],
)
def test_the_artifact_of_a_manifest_that_cannot_be_read_is_made_again(root, name, stage, content):
    before = root.contents()
    [path] = (root.folder / "manifest").glob(name)
    path.write_bytes(content)
    assert root.command("status")[0] == 1
    root.assert_made_again(before, **{stage: 1})


def test_tables_of_a_run_are_refused_where_a_shard_is_gone(root):
    from closelook import load

    lost = root.files("relevance/*/*/*/method=random")[0]
    delete(lost)
    with pytest.raises(ValueError, match=re.escape(f"{lost} is gone: `closelook run --root {root.folder}` computes")):
        load(str(root.folder)).relevance("arrow", tokens=False)


def test_shards_that_a_stopped_run_made_again_are_not_removed_by_the_next(root, monkeypatch):
    """Of other sizes, as another machine may make them: a manifest that knew the old ones says nothing of them."""
    lost = root.files("relevance/*/*/*/method=random")
    content = lost[0].read_bytes()
    for path in lost:
        delete(path)

    def full(*args, **options):
        raise OSError("no space left on device")  # for manifests: shards are committed by then

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "commit", full)
        assert root.command("attribute")[0] == 1
    assert [path.read_bytes() == content for path in lost[:1]] == [True]
    table = pq.read_table(lost[0], partitioning=None)
    pq.write_table(table, lost[0], compression=None)  # the same rows in more bytes
    other = lost[0].read_bytes()
    assert len(other) != len(content)
    code, printed = root.command("run")
    assert code == 0, printed
    assert lost[0].read_bytes() == other


@pytest.mark.parametrize(("command", "code"), [(("evaluate",), 1), (("gc", "--yes"), 0)])
def test_what_is_made_of_a_damaged_shard_stays_until_that_is_made_again(root, command, code):
    delete(root.files("relevance/*/*/*/method=random")[0])
    kept = root.contents()
    assert root.command(*command)[0] == code
    assert root.contents().keys() == kept.keys()


# a run ends with 1 where something is not complete


def test_a_run_ends_with_1_where_a_cell_is_lost_before_it_is_scored(root, monkeypatch):
    whole, lost = stages.function_of, root.files("relevance/*/*/*/method=random")[0]

    def function_of(stage):
        if stage == "evaluate":
            delete(lost)
        return whole(stage)

    monkeypatch.setattr(stages, "function_of", function_of)
    code, printed = root.command("run")
    assert "1 cells are not complete and have no scores" in printed
    assert code == 1
    assert "1 of 2 cells are not complete, among them relevance gpt2/sva/float32/random" in printed


def test_evaluate_alone_ends_with_1_where_cells_are_not_complete(root):
    next(iter((root.folder / "manifest").glob("relevance.*random*"))).unlink()
    code, printed = root.command("evaluate")
    assert code == 1
    assert "1 of 2 scores are not complete, among them scores gpt2/sva/float32/random" in printed


# weights


def test_weights_that_are_swapped_during_a_run_are_refused_and_nothing_is_committed(tmp_path, closelook, inline):
    folder = Path(shutil.copytree(model_dir("gpt2"), tmp_path / "gpt2"))
    weights, kept, other = folder / "model.safetensors", tmp_path / "kept.safetensors", tmp_path / "other.safetensors"
    shutil.copy2(weights, kept)
    save_file({name: -values for name, values in load_file(weights).items()}, other, {"format": "pt"})
    os.utime(other, ns=(weights.stat().st_atime_ns, weights.stat().st_mtime_ns))
    assert other.stat().st_size == weights.stat().st_size
    tasks = {"sva": {"source": "demo", "limit": 10}}
    settings = {"name": "small", "tasks": tasks, "models": [{"name": "gpt2", "id": str(folder)}], "methods": ["random"]}
    (tmp_path / "run").mkdir()
    root = Root(tmp_path / "run" / "root", closelook, settings)
    assert root.command("prepare")[0] == 0
    config, store = RunConfig.model_validate({**settings, "root": str(root.folder)}), Store(str(root.folder))
    [planned] = make_plan(config, store).cells()
    identity = make_plan(config, store).models[0].resolved.identity
    inline.before_unit = lambda index: os.replace(other, weights)
    code, printed = root.command("attribute")
    assert code == 1
    [line] = [line for line in printed.splitlines() if "weights changed during the run" in line]
    assert identity in line
    assert len(set(re.findall(r"sha256:\w{64}", line))) == 2
    assert store.files("relevance", recursive=True) == []

    os.replace(kept, weights)
    inline.before_unit = lambda index: None
    assert root.command("attribute")[0] == 0
    assert Ledger(store).is_done(planned.artifact)
