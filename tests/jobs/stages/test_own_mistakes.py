"""A bad row of users' own samples is left out, with file, line and reason, and the others run."""

import csv
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml

from closelook.evaluation.benchmark.demo import model_dir
from closelook.evaluation.schema import GENERIC, REJECT, RELEVANCE
from closelook.jobs.plan.inputs import with_token_types
from closelook.jobs.store import Store
from closelook.lrp_core import Batch, load_model
from tests.tiny import ragged_rows, tiny_classifier

LABELLED = [
    {"text": "the cats never walk", "label": "negative"},
    {"text": "the dogs walk", "label": "Positive"},
    {"text": "the dog sleeps", "label": "positive"},
]
PAIRS = [
    {"text": "the cats walk", "second": "the dogs walk", "score": 2.0},
    {"text": "the dogs walk", "second": "the dogs walk", "score": 4.0},
]
WORDS = [
    {"text": "The keys to the cabinet ___ old.", "target": "are", "foil": "is", "evidence": "keys"},
    {"text": "The key to the cabinets ___ old.", "target": "is", "foil": "are", "evidence": "key"},
]
DEEP = '{"text": "the dog", "label": "positive", "x": ' + "[" * 100_000 + "]" * 100_000 + "}"
LONG = '{"text": "the dog", "label": "positive", "x": ' + "9" * 5000 + "}"


@pytest.fixture
def run(closelook, tmp_path, inline):
    """(exit code, what is printed, errors, the store) of a run of the command on a file of one's own."""

    def ran(file, output, model):
        task = {"source": "samples", "path": str(file), **({"output": output} if output else {})}
        settings = {
            "name": "own",
            "root": str(tmp_path / "root"),
            "tasks": {"mine": task},
            "models": [{"name": "own", "id": model}],
            "methods": ["gradient_x_input"],
            "report": {"samples": 2, "resamples": 5},
        }
        (tmp_path / "own.yaml").write_text(yaml.safe_dump(settings))
        code, out, err = closelook("run", "--config", str(tmp_path / "own.yaml"))
        return code, out, err, Store(settings["root"])

    return ran


def written(tmp_path, rows):
    """A file of JSON lines; what is a string already is a line."""
    file = tmp_path / "mine.jsonl"
    file.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return file


def relevance(store):
    return store.read(store.files("relevance", recursive=True), RELEVANCE).to_pylist()


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_a_mistyped_label_is_a_reject_and_the_other_rows_run(run, tmp_path, suffix):
    rows, file = [*LABELLED, {"text": "the dog walks", "label": "positve"}], tmp_path / f"mine.{suffix}"
    if suffix == "jsonl":
        written(tmp_path, rows)
    elif suffix == "csv":
        with file.open("w", newline="") as stream:
            table = csv.DictWriter(stream, ["text", "label"])
            table.writeheader()
            table.writerows(rows)
    else:
        pq.write_table(pa.Table.from_pylist(rows), file)
    code, out, err, store = run(file, "label", "demo/bert-sentiment")
    assert (code, err) == (0, "")
    line = f"mine.{suffix}:{5 if suffix == 'csv' else 4}"
    assert "mine: 4 rows = 3 samples + 1 rejected (1 unknown label)" in out
    assert f"left out: {line}: unknown label: 'positve' (did you mean 'positive'?)" in out
    rejects = store.read(store.files("benchmark/generic/rejects", recursive=True), REJECT).to_pylist()
    assert [(row["where"], row["reason"]) for row in rejects] == [(line, "unknown label")]
    samples = store.read("benchmark/generic/task=mine", GENERIC)["sample_id"].to_pylist()
    assert len(samples) == 3
    assert {row["sample_id"] for row in relevance(store)} == set(samples)


@pytest.mark.thinned(4)
@pytest.mark.parametrize(
    ("output", "rows", "bad", "message"),
    [
        (
            "label",
            LABELLED,
            {"text": "the dog walks", "score": 1.0},
            "a score: the task's `output` is label: give a label instead",
        ),
        (
            "label",
            LABELLED,
            {"text": "the dog walks", "label": ["x"]},
            "unknown label: \"['x']\"; there are negative, p",
        ),
        ("label", LABELLED, '{"text": "the \\ud800 dog", "label": "positive"}', "not UTF-8: 'utf-8' codec can't"),
        ("label", LABELLED, DEEP, "not JSON: maximum recursion depth exceeded"),
        ("label", LABELLED, LONG, "not JSON: Exceeds the limit"),
        ("score", PAIRS, {"text": "a b", "second": "c", "score": 10**400}, "the score is no number: 1000"),
        (
            "score",
            PAIRS,
            {"text": "a b", "second": "c", "label": "x"},
            "a label: the task's `output` is score: give a score instead",
        ),
        (None, WORDS, '{"text": "The ___", "target": "\\ud800", "evidence": "The"}', "not UTF-8: 'utf-8' codec can't"),
    ],
)
def test_other_mistakes_of_a_row_are_rejects_and_the_other_rows_run(run, tmp_path, output, rows, bad, message):
    model = {"label": "demo/bert-sentiment", "score": "demo/bert-score", None: "demo/gpt2"}[output]
    code, out, err, store = run(written(tmp_path, [*rows, bad]), output, model)
    assert (code, err) == (0, "")
    assert f"left out: mine.jsonl:{len(rows) + 1}: {message}" in out
    assert len({row["sample_id"] for row in relevance(store)}) == len(rows)


def test_a_single_text_among_pairs_is_explained_as_by_itself(run, tmp_path):
    code, _, err, store = run(written(tmp_path, [*PAIRS, {"text": "the dogs", "score": 1}]), "score", "demo/bert-score")
    assert (code, err) == (0, "")
    single = min(relevance(store), key=lambda row: len(row["relevance"]))
    view = load_model(str(model_dir("bert-score")))
    ids = view.read_tokenizer()("the dogs")["input_ids"]
    with torch.no_grad():
        alone = float(view.model(input_ids=torch.tensor([ids])).logits[0, 0])
    assert single["logit_target"] == pytest.approx(alone, abs=1e-4)


def test_token_types_of_zeros_are_those_of_a_model_that_is_given_none():
    view = tiny_classifier("bert")
    rows = ragged_rows(view, (6, 4))
    mixed = with_token_types([rows[0] | {"token_type_ids": [0, 0, 0, 1, 1, 1]}, rows[1]])
    assert with_token_types(rows) is rows
    together, alone = (view.all_logits(Batch.collate(some, 0)) for some in (mixed, rows[1:]))
    np.testing.assert_allclose(together[1:].detach(), alone.detach(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [{"text": "a dog", "label": "good"}, {"text": "a cat", "label": "bad"}],
            "mine.jsonl:1: unknown label: 'good'",
        ),
        (
            [{"text": "the ___", "target": "dog", "evidence": "the"}],
            "mine.jsonl:1: a target: the task's output is",
        ),
        ([{"txt": "the dog", "label": "positive"}], "mine.jsonl:1: no column 'text': the columns are txt, label"),
    ],
)
def test_a_file_of_bad_rows_alone_is_an_error_of_the_file(run, tmp_path, rows, message):
    code, _, err, store = run(written(tmp_path, rows), "label", "demo/bert-sentiment")
    assert (code, len(err.splitlines())) == (2, 1)
    assert f"no usable row in the samples source of task mine; the first at {message}" in err
    assert not store.files("benchmark", recursive=True)


def test_the_first_rows_that_are_left_out_are_told_and_the_others_counted(run, tmp_path):
    bad = [{"text": f"the dog {at}", "label": "maybe"} for at in range(8)]
    code, out, _, _ = run(written(tmp_path, [*LABELLED, *bad]), "label", "demo/bert-sentiment")
    assert code == 0
    assert out.count("left out: mine.jsonl:") == 5
    assert "and 3 more, in " in out
