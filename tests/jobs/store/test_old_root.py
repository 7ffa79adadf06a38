"""A root of an earlier version (tests/data/root_v1: the smoke run on two samples): refused by name, or made anew."""

import re
import shutil
from pathlib import Path

import pytest

OLD = Path(__file__).parents[2] / "data" / "root_v1"
SETTINGS = ("tasks.sva.limit=2", "methods=[random,gradient_x_input]", "heads={sva: 2}", "prune={methods: [random]}")


@pytest.fixture
def root(tmp_path):
    shutil.copytree(OLD, tmp_path / "root")
    return tmp_path / "root"


@pytest.fixture
def command(closelook, root):
    """Exit code and what was printed, on one line, of a command on the root."""

    def run(*arguments):
        settings = [text for value in SETTINGS for text in ("--set", value)]
        code, out, err = closelook(*arguments, "--config", "smoke", "--root", str(root), *settings)
        return code, " ".join((out + err).split())

    return run


def files(root):
    """Those of numbers: neither manifests nor what reports and runs write about themselves."""
    rooms = ("benchmark", "relevance", "heads", "scores", "scores_samples", "pruning")
    return {str(path.relative_to(root)) for room in rooms for path in (root / room).rglob("*.parquet")}


def test_nothing_of_an_old_root_counts_as_done_and_nothing_of_it_is_read(command, root):
    before = files(root)
    code, text = command("status")
    assert code == 1
    assert "3 cells: 0 done, 0 partial, 3 missing" in text
    assert "sva is not prepared: run `closelook prepare` with the same --config and --root" in text
    code, text = command("audit")
    assert code == 2
    assert "holds schema generic v1, this version of closelook reads generic v5" in text
    assert command("gc", "--yes")[0] == 0
    assert files(root) == before, "as long as nothing says what they are stale against, they stay"


def test_what_an_old_root_holds_is_stale_by_name_once_its_samples_are_prepared_again(command, root):
    old = {path for path in files(root) if not path.startswith("benchmark")}
    assert command("prepare")[0] == 0
    code, text = command("status")
    assert code == 1
    assert "6 stale records, which `closelook gc --yes` removes" in text
    assert command("gc")[0] == 0
    assert files(root) >= old, "gc asks before it removes numbers"
    code, text = command("gc", "--yes")
    assert code == 0
    assert re.search("cells of another run: other samples(; tasks[^:]*)?: 6 files", text)
    assert "sets of curves of other inputs, settings or versions: 2 files" in text
    assert not files(root) & old
    kept = {path.name for path in (root / "manifest").iterdir()}
    assert kept == {"benchmark.sva.json", "views.bpe-e154b6e9.sva.json"}
