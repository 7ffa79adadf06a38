"""init, config, compare, --version: configs and runs of one's own; what is mistyped is one line."""

import csv
import os
import subprocess
import sys

import pytest
import yaml

from closelook.jobs.commands.listings.config import keys
from closelook.jobs.config import RunConfig
from closelook.jobs.methods import METHODS
from closelook.jobs.store import Store
from closelook.versions import extra_of
from tests.jobs.small import REPOSITORY
from tests.stages import score_plan
from tests.synthetic import CONFIG, a_cell, a_plan, relevance_rows, write_cell, write_run


def test_the_version_is_that_of_the_package(closelook):
    from importlib.metadata import version

    code, out, _ = closelook("--version")
    assert code == 0
    assert out.splitlines()[0] == f"closelook {version('closelook')}"
    assert any(line.startswith("torch ") for line in out.splitlines())


def test_every_key_is_explained_and_every_key_of_a_config_is_a_key():
    known = {key.path: key for key in keys()}
    assert [path for path, key in known.items() if not key.about] == []
    plain = RunConfig.load("demo").model_dump(mode="json")
    assert set(plain) == {path for path in known if "." not in path}
    assert set(plain["models"][0]) == {path.split(".")[1] for path in known if path.startswith("models[].")}
    assert known["tasks.NAME.limit"].takes == "whole number or null"
    assert known["report.samples"].default == "12"


def test_the_effective_configuration_is_one_that_can_be_run_again(closelook, tmp_path):
    code, out, _ = closelook("config", "--config", "smoke", "--set", "models.gpt2.dtype=float64")
    assert code == 0
    again = tmp_path / "again.yaml"
    again.write_text(out)
    expected = RunConfig.load("smoke", overrides=["models.gpt2.dtype=float64"])
    assert RunConfig.load(str(again)) == expected
    assert yaml.safe_load(out)["models"][0]["dtype"] == "float64"


def test_keys_are_explained_by_part_of_their_name(closelook):
    code, out, _ = closelook("config", "--keys", "budget")
    assert code == 0
    assert {"token_budget", "byte_budget", "models[].token_budget"} <= set(out.split())
    code, _, err = closelook("config", "--keys", "tokn_budget")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "did you mean 'token_budget'?" in err


@pytest.mark.parametrize(
    ("name", "text", "task"),
    [
        ("mine.jsonl", '{"text": "The keys ___ old.", "target": "are", "foil": "is"}\n', {}),
        ("mine.csv", "text,target,foil\nThe keys ___ old.,are,is\n", {}),
        ("labels.jsonl", '{"text": "good food", "label": "positive"}\n', {"output": "label"}),
        ("texts.csv", "review;id\ngood food;7\n", {"output": "label", "columns": {"text": "review"}}),
        ("marked.jsonl", '{"text": "good food", "evidence": "good"}\n', {"output": "label", "evidence": True}),
        ("plain.jsonl", '{"text": "The keys ___ old.", "target": "are"}\n', {"evidence": False}),
    ],
)
def test_a_config_for_ones_own_model_and_data_says_what_applies(closelook, tmp_path, name, text, task):
    data, to = tmp_path / name, tmp_path / "mine.yaml"
    data.write_text(text)
    model = "demo/bert-sentiment" if "output" in task else "demo/gpt2"
    columns = [
        part for known, of_file in task.get("columns", {}).items() for part in ("--column", f"{known}={of_file}")
    ]
    code, out, err = closelook("init", str(to), "--model", model, "--data", str(data), *columns)
    assert code == 0, err
    assert f"closelook run --config {to}" in out
    config = RunConfig.load(str(to))
    assert (
        config.model_dump()["tasks"]["mine"] | {"source": "samples", "path": str(data)} | task
        == (config.model_dump()["tasks"]["mine"])
    )
    names = [method.name for method in config.methods]
    assert "attnlrp" in names
    assert ("alti_logit" in names) == (model == "demo/gpt2"), "a masked model has none"
    assert "# - " in to.read_text(), "what costs more is there as a comment"
    assert config.perturb is not None
    assert not any(METHODS[method].unstable for method in names)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["there.yaml", "--model", "demo/gpt2"], "exists already"),
        (["new.yaml", "--model", "demo/gtp2"], "did you mean 'demo/gpt2'?"),
        (
            ["new.yaml", "--model", "demo/gpt2", "--data", "no.jsonl"],
            "or .tsv or .parquet file at no.jsonl",
        ),
        (["new.yaml", "--model", "demo/gpt2", "--data", "bad.parquet"], "bad.parquet is not Parquet that can be read"),
        (["new.yaml", "--model", "demo/gpt2", "--data", "bad.jsonl"], "holds no sample (bad.jsonl:2: not JSON"),
        (["new.yaml", "--model", "demo/gpt2", "--data", "list.jsonl"], "list.jsonl:1: not a JSON object"),
        (["new.yaml", "--model", "demo/gpt2", "--data", "empty.csv"], "empty.csv holds no sample: give JSON Lines"),
        (["new.yaml", "--model", "demo/gpt2", "--data", "gone.jsonl"], "cannot read gone.jsonl: No such file"),
        (["new.yaml", "--model", "demo/bert-sentiment", "--data", "words.jsonl"], "predicts a label, but the samples"),
        (
            ["new.yaml", "--model", "demo/bert-sentiment", "--data", "other.csv"],
            "but review: name the column of texts with",
        ),
        (["new.yaml", "--model", "demo/gpt2", "--data", "other.csv", "--column", "text=rview"], "no column 'rview'"),
        (["new.yaml", "--model", "demo/gpt2", "--method", "atnlrp"], "did you mean 'attnlrp'?"),
    ],
)
def test_what_init_cannot_do_is_one_line(closelook, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.yaml").write_text("")
    for name, text in {"bad.parquet": "PAR1", "bad.jsonl": "\nno\n", "list.jsonl": "[1]\n", "empty.csv": ""}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "other.csv").write_text("review\ngood food\n")
    (tmp_path / "gone.jsonl").symlink_to("nowhere")
    (tmp_path / "words.jsonl").write_text('{"text": "The keys ___ old.", "target": "are", "foil": "is"}\n')
    code, _, err = closelook("init", *arguments)
    assert (code, len(err.splitlines())) == (2, 1)
    assert message in err
    assert not (tmp_path / "new.yaml").exists()


@pytest.fixture
def two_runs(tmp_path):
    """The same but for random relevance, which the second has of another seed under another key, and one cell less."""
    first, second = (write_run(tmp_path / name, samples=16, tasks=("sva",)) for name in ("one", "other"))
    views = [row for path in second.files("benchmark/views", recursive=True) for row in _rows(second, path)]
    for method, key in (("random", "fedcba9876543210"), ("gradient_l2", None)):
        old = a_cell("sva", method)
        record = second.manifest(old.name)
        second.delete(f"manifest/{old.name}.json")
        if key is None:
            second.delete(f"manifest/scores.gpt2.sva.float32.{method}.json")
            continue
        cell = a_cell("sva", method, key=key)
        rows = [row | {"relevance": row["relevance"][::-1]} for row in relevance_rows(views, "random", seed=9)]
        write_cell(second, cell, rows)
        made = second.manifest(cell.name)
        second.write_manifest(cell.name, record | made)
        second.delete(f"manifest/scores.gpt2.sva.float32.{method}.json")
        score_plan(CONFIG, a_plan(second, [cell]), second)
    return first, second


def _rows(store: Store, path: str):
    import pyarrow.parquet as pq

    return pq.read_table(f"{store.root}/{path}", partitioning=None).to_pylist()


def test_two_runs_are_compared_place_by_place(closelook, two_runs, tmp_path):
    first, second = two_runs
    to = tmp_path / "changes.csv"
    code, out, err = closelook("compare", first.root, second.root, "--csv", str(to))
    assert code == 0, err
    assert f"only in {first.root}: 1 cells" in out
    assert "gpt2 · sva · float32 · gradient_l2" in out
    rows = {row["method"]: row for row in csv.DictReader(to.read_text().splitlines())}
    assert set(rows) == {"attnlrp", "attention_rollout", "random"}
    assert rows["attnlrp"]["same_key"] == "True"
    assert rows["attnlrp"]["first"] == rows["attnlrp"]["second"]
    assert float(rows["attnlrp"]["p"]) == 1
    assert rows["random"]["same_key"] == "False"
    assert rows["random"]["first"] != rows["random"]["second"]
    assert "same numbers" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--metric", "pgg"], "no metric 'pgg' (did you mean 'pg'?)"), (["--csv", "/no/x.csv"], "cannot write /no/x.csv")],
)
def test_what_compare_cannot_do_is_one_line(closelook, two_runs, arguments, message):
    first, second = two_runs
    code, _, err = closelook("compare", first.root, second.root, *arguments)
    assert (code, len(err.splitlines())) == (2, 1)
    assert message in err


def test_a_root_without_a_run_cannot_be_compared(closelook, tmp_path):
    code, _, err = closelook("compare", str(tmp_path / "a"), str(tmp_path / "b"))
    assert (code, len(err.splitlines())) == (2, 1)
    assert "closelook run --root" in err


def test_a_command_without_a_root_is_not_submitted(closelook):
    code, _, err = closelook("submit", "--config", "smoke", "--address", "http://127.0.0.1:9")
    assert (code, err) == (2, "error: add --root with the folder or URL of all results, which every node must reach\n")


def test_shells_can_be_told_to_complete(closelook, monkeypatch):
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")  # what runs the tests may be no shell
    code, out, _ = closelook("--show-completion", "bash")
    assert code == 0
    assert "_CLOSELOOK_COMPLETE" in out or "complete" in out


REQUIRES = [
    "torch>=2",
    "ray[data,default]>=2.60; extra == 'run'",
    "ray>=2.60; extra == 'dev'",
    "spacy>=3.8; extra == 'annotate'",
]


def test_a_command_without_its_extra_is_one_line_that_names_it(closelook, monkeypatch, tmp_path):
    monkeypatch.setattr("closelook.versions.requires", lambda name: REQUIRES)
    monkeypatch.setitem(sys.modules, "ray", None)
    closelook("prepare", "--config", "smoke", "--root", str(tmp_path))
    code, _, err = closelook("attribute", "--config", "smoke", "--root", str(tmp_path))
    assert (code, err.splitlines()[-1]) == (2, "error: this command needs ray: pip install 'closelook[run]'")


@pytest.mark.nightly  # by day, `tests/test_light_imports.py` has what they import
def test_explaining_and_reading_need_no_extra():
    """In a process of its own, where none of their packages can be imported."""
    code = """
import sys
for name in ("ray", "spacy", "fastcoref"):
    sys.modules[name] = None
import closelook
print(closelook.explain("The keys to the cabinet", "are", "is", model="demo/gpt2"))
"""
    paths = [str(REPOSITORY), str(REPOSITORY / "src")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.stdout == "<Explanation of 'are rather than is' by demo/gpt2: attnlrp>\n", done.stderr


def test_an_extra_is_known_by_the_modules_that_it_brings(monkeypatch):
    monkeypatch.setattr("closelook.versions.requires", lambda name: REQUIRES)
    assert [extra_of(name) for name in ("ray", "spacy", "torch", "numpy")] == ["run", "annotate", None, None]
