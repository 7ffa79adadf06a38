"""A scheduled run tells in short what was new: the artifacts of a new model alone, changed groups, failures."""

import json

from closelook.jobs.stages.run import JSON, MARKDOWN, Latest
from closelook.jobs.store import Artifact, Store

TWO = "models=[{name: gpt2, id: demo/gpt2}, {name: gpt2-seed1, id: demo/gpt2-seed1}]"
BROKEN = "models=[{name: gpt2, id: demo/gpt2}, {name: lost, id: /no/model}]"


def latest(root):
    store = Store(root)
    return json.loads(store.read_bytes(JSON)), store.read_bytes(MARKDOWN).decode()


def new_in(record):
    """(product, model, method) of what was made but for the report."""
    made = [(artifact["product"], artifact["model"], artifact["method"]) for artifact in record["new"]]
    return sorted(artifact for artifact in made if artifact[0] != "report")


def test_a_run_that_finds_a_new_model_computes_its_cells_alone_and_tells_them(closelook, inline, tmp_path):
    root = str(tmp_path / "root")
    assert closelook("run", "--config", "smoke", "--root", root)[0] == 0
    first, _ = latest(root)
    assert (first["ending"], first["failures"]) == ("complete", [])
    assert ("relevance", "gpt2", "attnlrp") in new_in(first)
    before = {path: Store(root).modified_s(path) for path in Store(root).files("relevance", recursive=True)}

    assert closelook("run", "--config", "smoke", "--root", root, "--set", TWO)[0] == 0
    record, text = latest(root)
    methods = ("attnlrp", "gradient_x_input", "random")
    assert new_in(record) == [
        (product, "gpt2-seed1", method) for product in ("relevance", "scores") for method in methods
    ]
    assert {path: Store(root).modified_s(path) for path in before} == before
    (changed,) = record["groups"]
    assert (changed["model"], changed["task"], changed["before"]) == ("gpt2-seed1", "sva", None)
    assert sorted(method for group in changed["now"] for method in group) == sorted(methods)
    assert text.startswith("# complete: 7 new artifacts, 1 changed groups, 0 failures\n")
    assert "| gpt2-seed1 | 3 cells, 3 scores |" in text
    assert Store(root).exists(record["record"])

    assert closelook("run", "--config", "smoke", "--root", root, "--set", TWO)[0] == 0
    assert latest(root) == (record, text), "a run that had nothing to do leaves both as they were"


def test_what_failed_and_a_request_to_stop_are_told(closelook, inline, tmp_path):
    root = str(tmp_path / "root")
    assert closelook("run", "--config", "smoke", "--root", root)[0] == 0
    store = Store(root)
    (shard,) = [path for path in store.files("relevance", recursive=True) if "method=random" in path][:1]
    store.delete(shard)
    inline.before_unit = lambda index: (_ for _ in ()).throw(RuntimeError("a node died"))
    assert closelook("run", "--config", "smoke", "--root", root)[0] == 1
    record, text = latest(root)
    assert record["ending"] == "incomplete"
    assert any("a node died" in failure for failure in record["failures"])
    assert "## Failures\n\n* model gpt2: RuntimeError: a node died" in text

    from closelook.jobs.store import lock

    inline.before_unit = lambda index: lock.ask_to_stop(store)
    assert closelook("run", "--config", "smoke", "--root", root)[0] == 1
    assert latest(root)[0]["ending"] == "stopped"


def test_groups_that_changed_are_told_beside_what_they_were():
    before = {("gpt2", "sva"): [["lrp"], ["random"]], ("bert", "sva"): [["lrp"]], ("gone", "qa"): [["lrp"]]}
    now = {("gpt2", "sva"): [["lrp", "attnlrp"], ["random"]], ("bert", "sva"): [["lrp"]]}
    ends = {"begun": "b", "ended": "e", "ending": "complete"}
    latest = Latest("runs/x.json", **ends, failures=(), made=[Artifact("relevance", "gpt2")], before=before, now=now)
    text = latest.as_markdown()
    assert "* gpt2, sva: lrp, attnlrp > random; before: lrp > random\n" in text
    assert "* gone, qa: none; before: lrp\n" in text
    assert "bert" not in text
    assert len(json.loads(latest.as_json())["groups"]) == 2
