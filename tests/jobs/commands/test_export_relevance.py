"""`closelook export --relevance`: the rows of a run are those that explain-file writes of the same texts."""

import json

import pandas as pd
import pyarrow.parquet as pq
import pytest

from closelook.evaluation.schema import TOKENS, WORDS, check
from closelook.jobs.commands.roots.explained import replacing
from closelook.jobs.store import Store

TEXTS = {
    "A": "The ship that followed their clocks looked boring today.",
    "B": "The famous telescope looked dull.",
    "C": "Your nephews that drew our shelves looked very brilliant today.",
    "D": "The famous telescope looked dull.",
}
ASKED = [
    {"text": "The keys to the cabinet ___ old.", "target": "are", "foil": "is", "evidence": "keys", "id": "K"},
    {"text": "Near the box, the girl ___ here.", "target": "is", "foil": "are", "evidence": "girl", "id": "G"},
]
PLACE = ["id", "method", "explanation", "embedding", "side", "at"]
METHODS = "attnlrp,gradient_l2"


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def run(closelook, inline, tmp_path):
    """The rows, by word and by token, of a run of `models` on a file of samples."""

    def compute(file, models, output=None):
        root, named = str(tmp_path / "root"), [{"name": name, "id": f"demo/{name}"} for name in models]
        task = {"source": "samples", "path": file} | ({"output": output} if output else {})
        settings = {"tasks": {"mine": task}, "models": named}
        config = tmp_path / "config.yaml"
        config.write_text(json.dumps({"name": "mine", "root": root, **settings, "methods": METHODS.split(",")}))
        for stage in ("prepare", "attribute"):
            code, _, err = closelook(stage, "--config", str(config))
            assert code == 0, err
        return lambda: closelook("export", "--root", root, "--relevance", str(tmp_path / "rows.parquet"))

    return compute


def read(path):
    for file, schema in ((path, WORDS), (path.with_suffix(".tokens.parquet"), TOKENS)):
        check(pq.read_schema(file), schema, str(file))
    return [pd.read_parquet(file).set_index(PLACE).sort_index() for file in (path, path.with_suffix(".tokens.parquet"))]


def compared(rows, explained):
    """Rows of a run are at least those of the file, in every column that both know."""
    for exported, expected in zip(rows, explained, strict=True):
        exported, of_run = exported.loc[expected.index], ["row", "model", "task", "probability"]
        assert len(expected) > 20
        pd.testing.assert_frame_equal(
            exported.drop(columns=of_run), expected.drop(columns=of_run), atol=1e-5, check_dtype=False
        )


def test_rows_of_a_run_are_those_of_explain_file_and_have_its_users_ids(run, closelook, tmp_path):
    file = write(tmp_path / "mine.jsonl", [{"text": text, "id": name} for name, text in TEXTS.items()])
    export = run(file, ["bert-sentiment"], "label")
    code, out, _ = export()
    assert code == 0
    assert out.startswith("3 samples, written to ")
    of_file = ("explain-file", file, str(tmp_path / "file.parquet"), "--model", "demo/bert-sentiment")
    assert closelook(*of_file, "--method", METHODS)[0] == 0
    rows, explained = read(tmp_path / "rows.parquet"), read(tmp_path / "file.parquet")
    compared(rows, explained)
    for exported, expected in zip(rows, explained, strict=True):
        assert set(exported.index.get_level_values("id")) == set(TEXTS)
        assert set(exported["task"]) == {"mine"}
        probability = exported.loc[expected.index]["probability"].to_numpy()
        assert probability == pytest.approx(expected["probability"].to_numpy(), abs=1e-5)
    code, _, err = export()
    assert code == 2
    assert "exists already" in err


def test_rows_of_words_beside_their_slots_are_those_of_explain_file(run, closelook, tmp_path):
    models = ("gpt2", "bert", "t5")
    file = write(tmp_path / "mine.jsonl", ASKED)
    assert run(file, models)()[0] == 0
    rows = read(tmp_path / "rows.parquet")
    plain = [{key: value for key, value in row.items() if key != "evidence"} for row in ASKED]
    file = write(tmp_path / "plain.jsonl", plain)
    for model in models:
        to = tmp_path / f"{model}.parquet"
        code, _, err = closelook("explain-file", file, str(to), "--model", f"demo/{model}", "--method", METHODS)
        assert code == 0, err
        explained = read(to)
        slots = {row["id"]: row["text"].index("___") for row in ASKED}
        for frame in explained:  # in a sample's text, unlike in the file's, no mark stands in the slot
            behind = frame["start"] > frame.index.get_level_values("id").map(slots)
            frame.loc[behind, ["start", "end"]] -= len("___")
        compared([frame[frame["model"] == model] for frame in rows], explained)


def test_rows_that_are_not_finished_are_removed_or_found_by_gc(tmp_path):
    path, store = tmp_path / "rows.parquet", Store(str(tmp_path))

    def interrupted():
        with replacing(path) as file:
            file.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not list(tmp_path.iterdir())
    killed = replacing(path)
    killed.__enter__().write_text("half")
    assert [tmp_path / name for name in store.temporaries()] == list(tmp_path.iterdir()) != []
    with replacing(path) as file:
        file.write_text("whole")
    assert list(tmp_path.iterdir()) == [path]


def test_export_wants_to_be_told_what(closelook, tmp_path):
    code, _, err = closelook("export", "--root", str(tmp_path))
    assert code == 2
    assert "--to FOLDER for the benchmark, --relevance OUT.parquet for relevance" in err
