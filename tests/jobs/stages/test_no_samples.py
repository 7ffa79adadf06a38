"""A tokenizer that fits no sample: its cells are complete and empty, and no command stumbles over them."""

import json
import shutil

import pytest

from closelook.evaluation.schema import SCORES
from closelook.jobs.store import Ledger, Store
from tests.jobs.small import config_of

pytestmark = pytest.mark.drawn


@pytest.fixture
def empty_run(closelook, inline, model, tmp_path):
    """(command, store) of a run whose only model knows none of the benchmark's words."""
    settings = {
        "tasks": {"sva": {"source": "demo", "limit": 12}},
        "methods": ["attnlrp", "random", {"integrated_gradients": {"steps": [2, 3]}}],
        "select": {"samples": 5},
        "heads": {"sva": 5},
        "prune": {"random_runs": 2},
        "bench": {"samples": 3},
        "report": {"samples": 2, "resamples": 10},
    }
    config = config_of(tmp_path / "root", model, **settings)
    path = tmp_path / "small.yaml"
    path.write_text(config.model_dump_json())
    return lambda name, *more: closelook(name, "--config", str(path), *more), Store(config.root)


def test_cells_without_samples_are_complete_and_no_command_stumbles_over_them(empty_run, closelook, tmp_path):
    command, store = empty_run
    code, out, err = command("run")
    assert (code, err) == (0, "")
    reject = "12 rejected (12 "
    assert f"gpt2/sva: no sample fits the tokenizer, so its cells are empty: {reject}" in out
    records = [record for name, record in Ledger(store).records("relevance")]
    assert len(records) == 3
    assert all((record["state"], record["rows"], record["shards"]) == ("complete", 0, []) for record in records)
    scores = store.read("scores", SCORES).to_pylist()
    assert {(row["metric"], row["value"], row["n"]) for row in scores} == {("accuracy", None, 0)}
    assert store.exists("report/index.html")

    code, out, _ = command("run")
    assert (code, "nothing to do" in out) == (0, True)
    code, out, _ = command("status")
    assert code == 0
    (line,) = [line for line in out.splitlines() if " relevance " in line]
    assert line.split()[:8] == ["gpt2", "sva", "float32", "relevance", "3", "0", "0", "0"]
    assert " 12 " in line, "what the view rejected"
    assert "run `closelook" not in out
    code, out, _ = command("audit", "--json", str(tmp_path / "audit.json"))
    assert (code, reject in out) == (0, True)
    ((written,),) = (tokenizers.values() for tokenizers in json.loads((tmp_path / "audit.json").read_text()).values())
    assert (written["rows_in"], written["accepted"]) == (12, 0)
    assert command("plan")[0] == 0
    assert command("gc")[0] == 0
    assert command("bench")[0] == 0
    shutil.copytree(tmp_path / "root", tmp_path / "other")
    code, out, err = closelook("compare", str(tmp_path / "root"), str(tmp_path / "other"))
    assert (code, err) == (0, "")
    assert "no cell has scores by" in out
