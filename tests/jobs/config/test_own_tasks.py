"""A run on tasks of the user's own: what it takes of the demo, and what the columns of the file decide."""

import json

import pytest

from closelook.jobs.config import RunConfig
from closelook.jobs.config.kept import keeping, kept, load
from closelook.jobs.plan.cells import validate
from closelook.jobs.plan.models import resolve
from closelook.jobs.plan.taken import tasks_of
from closelook.jobs.store import Store

WORD = {"text": "The keys to the cabinet ___ old.", "target": "are", "foil": "is"}
TEXT = {"text": "The famous telescope looked dull."}
OPINION = TEXT | {"label": "negative"}
SCORED = {"text": "The keys are old.", "second": "The keys fall.", "score": 2}


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"tasks={{mine: {{source: samples, path: {path}}}}}"


@pytest.mark.parametrize(
    ("row", "models"),
    [
        (WORD, ["bert", "gpt2", "llama"]),
        (OPINION, ["bert-sentiment", "gpt2-sentiment"]),
        (SCORED, ["bert-score"]),
    ],
)
def test_a_run_that_names_no_config_takes_of_the_demo_what_applies_to_its_tasks(row, models, tmp_path):
    config, _ = load(None, str(tmp_path / "root"), [write(tmp_path / "mine.jsonl", row)])
    validate(config)
    demo = RunConfig.load("demo")
    assert [entry.name for entry in config.methods] == [entry.name for entry in demo.methods]
    assert {model.id for model in config.models} <= {model.id for model in demo.models}
    assert [model.name for model in config.models if tasks_of(config, resolve(model, config.seed))] == models


@pytest.mark.parametrize(
    ("rows", "output", "evidence"),
    [
        ([WORD | {"evidence": "keys"}], None, None),
        ([WORD], None, False),
        ([WORD | {"evidence": None}], None, None),
        ([OPINION], "label", None),
        ([OPINION | {"evidence": "dull"}], "label", True),
        ([OPINION | {"target": None, "evidence": []}], "label", None),
        ([TEXT | {"evidence": "dull"}, OPINION], "label", True),
        ([SCORED | {"evidence": "keys"}], "score", True),
        ([{"prompt": "The keys", "answer": "are old."}], None, None),
    ],
)
def test_the_columns_of_a_file_decide_what_its_task_leaves_out(rows, output, evidence, tmp_path):
    settings = RunConfig.load("smoke", overrides=[write(tmp_path / "mine.jsonl", *rows)]).tasks["mine"]
    assert (settings.output, settings.evidence) == (output, evidence)


def test_columns_are_known_by_the_names_that_the_task_gives_them(tmp_path):
    (tmp_path / "mine.csv").write_text("review;stars;why\nThe famous telescope looked dull.;negative;dull\n")
    task = {"source": "samples", "path": str(tmp_path / "mine.csv")}
    task["columns"] = {"text": "review", "label": "stars", "evidence": "why"}
    settings = RunConfig.load("smoke", overrides=[f"tasks={json.dumps({'mine': task})}"]).tasks["mine"]
    assert (settings.output, settings.evidence) == ("label", True)


def test_what_a_task_says_is_not_decided_by_its_file(tmp_path):
    write(tmp_path / "mine.jsonl", OPINION | {"evidence": "dull"})
    for given in ({"output": "label", "evidence": False}, {"output": "label", "evidence": None}):
        task = {"source": "samples", "path": str(tmp_path / "mine.jsonl")} | given
        settings = RunConfig.load("smoke", overrides=[f"tasks={json.dumps({'mine': task})}"]).tasks["mine"]
        assert (settings.output, settings.evidence) == ("label", given["evidence"])


def test_a_root_keeps_what_the_file_decided_when_it_was_first_read(tmp_path):
    config, store = load(None, str(tmp_path / "root"), [write(tmp_path / "mine.jsonl", OPINION)])
    store.create()
    with keeping(config, store):
        (tmp_path / "mine.jsonl").unlink()
    assert kept(Store(store.root)).tasks["mine"].output == "label"
