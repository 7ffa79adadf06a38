"""`closelook export --relevance`: the rows of a run are what `closelook.explain` tells of the same texts."""

import json

import pandas as pd
import pyarrow.parquet as pq
import pytest

import closelook as front
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


def test_rows_of_a_run_are_what_explain_tells_and_have_its_users_ids(run, closelook, tmp_path):
    file = write(tmp_path / "mine.jsonl", [{"text": text, "id": name} for name, text in TEXTS.items()])
    export = run(file, ["bert-sentiment"], "label")
    code, out, _ = export()
    assert code == 0
    assert out.startswith("3 samples, written to ")
    _, tokens = read(tmp_path / "rows.parquet")
    explained = front.explain(list(TEXTS.values()), model="demo/bert-sentiment", method=METHODS.split(","))
    for name, explanation in zip(TEXTS, explained, strict=True):
        for method, expected in explanation.to_frame().groupby("method"):
            rows = tokens.loc[name, method, "contrastive"]
            rows = rows.loc[rows.index.get_level_values("embedding")[0]]
            assert list(rows["token"]) == list(expected["token"])
            assert rows["relevance"].to_numpy() == pytest.approx(expected["relevance"].to_numpy(), abs=1e-5)
    assert set(tokens["task"]) == {"mine"}
    code, _, err = export()
    assert code == 2
    assert "exists already" in err


@pytest.mark.parametrize("model", ["gpt2", "bert", "t5"])
def test_rows_of_words_beside_their_slots_are_what_explain_tells(run, model, tmp_path):
    assert run(write(tmp_path / "mine.jsonl", ASKED), [model])()[0] == 0
    words, _ = read(tmp_path / "rows.parquet")
    for row in ASKED:
        expected = front.explain(row["text"], row["target"], row["foil"], model=f"demo/{model}", method="attnlrp")
        frame, rows = expected.to_frame(by="word"), words.loc[row["id"], "attnlrp", "contrastive", "full"]
        assert rows["relevance"].sum() == pytest.approx(frame["relevance"].sum(), abs=1e-5)
        text, located = row["text"].replace("___", ""), rows[rows["start"].notna()]
        assert [text[int(r.start) : int(r.end)] for r in located.itertuples()] == list(located["word"])


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
