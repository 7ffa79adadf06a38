"""Users' own samples in a run, and words of several tokens."""

import json

import pytest

from closelook.evaluation.schema import VIEW
from closelook.evaluation.tasks import TASKS
from closelook.jobs.config import RunConfig
from closelook.jobs.stages.prepare import prepare
from closelook.jobs.store import Ledger, Store
from closelook.jobs.store.artifacts import samples_of, views_of

KINDS = ("masked", "causal")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("own.jsonl", '{"text": "The keys ___", "target": "are", "evidence": "keys"}\n'),
        ("own.csv", "text,target,foil,evidence\nThe keys ___,are,,keys\n"),
    ],
)
def test_a_contrast_on_own_samples_without_foils_is_refused_before_anything_is_written(
    tmp_path, closelook, name, content
):
    (tmp_path / name).write_text(content)
    task = f"tasks={{mine: {{source: samples, path: {tmp_path / name}}}}}"
    arguments = ("run", "--config", "smoke", "--root", str(tmp_path / "root"), "--set", task)
    code, _, err = closelook(*arguments, "--set", "explanations=[contrastive]")
    assert code == 2
    assert "config key 'tasks.mine': the task has no foils to contrast with: add 'target' to `explanations`" in err
    assert not (tmp_path / "root").exists()


def test_the_command_tasks_prints_every_task_from_its_record(closelook):
    code, out, err = closelook("tasks")
    assert (code, err) == (0, "")
    for name, task in TASKS.items():
        assert f"{name}: {task.title}, brought by closelook\n" in out
        assert f"predicts: {task.predicts}, words: {task.words}\n" in out
    assert "sources: lgd, demo, samples\n" in out


@pytest.mark.parametrize("name", ["empty.jsonl", "wrong.jsonl", "none.jsonl", "wrong.txt"])
def test_an_empty_or_wrong_file_ends_the_command_with_one_line(tmp_path, closelook, name):
    (tmp_path / "empty.jsonl").write_text("")
    for wrong in ("wrong.jsonl", "wrong.txt"):
        (tmp_path / wrong).write_text("The keys\n")
    settings = f"tasks={{mine: {{source: samples, path: {tmp_path / name}}}}}"
    code, out, err = closelook("prepare", "--config", "smoke", "--root", str(tmp_path / "root"), "--set", settings)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "mine" in err or name in err


def test_words_of_several_tokens_are_an_option_of_every_task_for_causal_models(tmp_path):
    row = {"text": "The keys to the cabinet ___", "target": "xylophones", "foil": "xylograph", "evidence": "keys"}
    (tmp_path / "mine.jsonl").write_text(json.dumps(row))

    def rows(**options):
        config = RunConfig.model_validate(
            {
                "name": "small",
                "root": str(tmp_path / "root"),
                "tasks": {"mine": {"source": "samples", "path": str(tmp_path / "mine.jsonl"), **options}},
                "models": [{"name": "gpt2", "id": "demo/gpt2"}, {"name": "bert", "id": "demo/bert"}],
                "methods": ["random"],
            }
        )
        store = Store(config.root)
        assert prepare(config, store).complete
        names = {record["kind"]: record["tokenizer"] for _, record in Ledger(store).records("views")}
        return {kind: store.read(views_of(names[kind], "mine").folder, VIEW).to_pylist() for kind in KINDS}

    assert rows() == {"masked": [], "causal": []}
    result = rows(words="first_difference")
    assert result["masked"] == []
    [view] = result["causal"]
    assert view["target_id"] != view["foil_id"]
    assert rows() == {"masked": [], "causal": []}  # made again: the option is part of what a view is


def test_own_samples_come_from_an_object_store_and_are_read_again_when_they_change(tmp_path, bucket, monkeypatch):
    import boto3
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HOME", str(tmp_path / "cache"))
    row = {"text": "The keys to the cabinet ___ old.", "target": "are", "foil": "is", "evidence": "keys"}
    store = Store(str(tmp_path / "root"))
    store.create()
    counts = []
    for rows in ([row], [row, row | {"text": "The doors of the house ___ old.", "evidence": "doors"}]):
        body = "\n".join(map(json.dumps, rows)).encode()
        boto3.client("s3").put_object(Bucket=bucket, Key="mine.jsonl", Body=body)
        settings = f"tasks={{mine: {{source: samples, path: 's3://{bucket}/mine.jsonl'}}}}"
        config = RunConfig.load("smoke", store.root, [settings])
        for expected in (2, 0):
            assert prepare(config, store).computed == expected, "samples and views, once"
        counts.append(Ledger(store).latest(samples_of("mine"))["rows"])
    assert counts == [1, 2]
