"""`closelook explain-file`: rows as `closelook.explain` has them, of a run that is computed once."""

import csv
import json

import pandas as pd
import pyarrow.parquet as pq
import pytest

import closelook as front
from closelook.evaluation.schema import TOKENS, WORDS, check

MODEL = "demo/bert-sentiment"
TEXTS = [
    "The ship that followed their clocks looked boring today.",
    "The famous telescope looked dull.",
    "Your nephews that drew our shelves looked very brilliant today.",
    "The wolf was never quite horrible.",
    "In the morning, their wolf looked fine.",
]
NAMES = dict(zip("ABCD5", TEXTS, strict=True)) | {"G": TEXTS[1]}


@pytest.fixture
def file(tmp_path):
    """Five texts, the second one twice, and a row without a text."""
    path = tmp_path / "reviews.csv"
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream, delimiter=";")
        writer.writerow(["case", "review", "stars"])
        names = ["A", "B", "C", "D", "", "F", "G"]
        texts = [*TEXTS, "", TEXTS[1]]
        writer.writerows([name, text, "5"] for name, text in zip(names, texts, strict=True))
    return path


@pytest.fixture
def explain_file(closelook, inline, file, tmp_path):
    """Run the command on the file, with `arguments`: (exit code, stdout, stderr)."""

    def run(*arguments, to="out.parquet"):
        columns = ("--column", "text=review", "--column", "id=case")
        return closelook("explain-file", str(file), str(tmp_path / to), "--model", MODEL, *columns, *arguments)

    return run


def read(tmp_path, name="out"):
    for suffix, schema in (("", WORDS), (".tokens", TOKENS)):
        check(pq.read_schema(tmp_path / f"{name}{suffix}.parquet"), schema, name)
    return pd.read_parquet(tmp_path / f"{name}.parquet"), pd.read_parquet(tmp_path / f"{name}.tokens.parquet")


def test_rows_are_what_explain_tells_of_each_text_and_are_named_by_their_users_ids(explain_file, tmp_path):
    code, out, err = explain_file("--method", "attnlrp,gradient_l2")
    assert code == 0, err
    assert "5 texts explained\n" in out
    assert "1 rejected (1 empty text)" in out
    words, tokens = read(tmp_path)
    assert set(tokens["id"]) == set(NAMES)
    explained = front.explain(list(NAMES.values()), model=MODEL, method=["attnlrp", "gradient_l2"])
    of_id = dict(zip(NAMES, explained, strict=True))
    for (name, method), group in tokens.groupby(["id", "method"]):
        frame = of_id[name].to_frame()
        frame = frame[frame["method"] == method]
        assert list(group["token"]) == list(frame["token"])
        assert group["relevance"].to_numpy() == pytest.approx(frame["relevance"].to_numpy(), abs=1e-5)
        assert set(group["decision"]) == {of_id[name].target}
        assert set(group["against"]) == {of_id[name].foil}
    by_word = words.groupby(["id", "method"])["relevance"].sum()
    by_token = tokens.groupby(["id", "method"])["relevance"].sum()
    sums = by_word.index.get_level_values("method") == "attnlrp"
    assert by_word[sums].to_numpy() == pytest.approx(by_token[sums].to_numpy(), abs=1e-5)
    located = words[~words["special"]]
    assert len(located) > 30
    for row in located.itertuples():
        assert NAMES[row.id][int(row.start) : int(row.end)] == row.word
    assert words[words["special"]]["start"].isna().all()


def test_the_probability_is_that_of_the_models_softmax(explain_file, tmp_path):
    assert explain_file()[0] == 0
    _, tokens = read(tmp_path)
    opened = front.open_model(MODEL)
    for name, text in NAMES.items():
        probabilities = opened.view.model(**opened.tokenizer(text, return_tensors="pt")).logits[0].softmax(-1)
        [probability] = set(tokens[tokens["id"] == name]["probability"])
        assert probability == pytest.approx(float(probabilities.max()), abs=1e-5)


def test_a_second_call_computes_nothing_and_another_method_is_added(explain_file, tmp_path):
    assert explain_file()[0] == 0
    before, shards = (tmp_path / "out.parquet").read_bytes(), set((tmp_path / "out.run").glob("relevance/**/*.parquet"))
    assert shards
    times = {shard: shard.stat().st_mtime_ns for shard in shards}
    assert explain_file()[0] == 0
    assert (tmp_path / "out.parquet").read_bytes() == before
    assert explain_file("--method", "attnlrp,attnlrp:reduce=l1")[0] == 0
    assert {shard: shard.stat().st_mtime_ns for shard in shards} == times
    assert set(read(tmp_path)[0]["method"]) == {"attnlrp", "attnlrp-reduce-l1"}


@pytest.mark.parametrize("name", ["out.parquet", "out.tokens.parquet"])
def test_a_file_of_ones_own_where_rows_go_is_not_overwritten(explain_file, tmp_path, name):
    (tmp_path / name).write_bytes(b"mine")
    code, _, err = explain_file()
    assert (code, f"{name} exists already: name another file or remove it" in err) == (2, True)
    assert (tmp_path / name).read_bytes() == b"mine"


def test_a_text_that_is_too_long_is_counted_or_cut(explain_file, file, tmp_path):
    file.write_text(file.read_text() + f"H;{'the dog ' * 200};1\n")
    code, out, err = explain_file()
    assert code == 0, err
    assert "too long" in out
    assert explain_file("--truncate", to="cut.parquet")[0] == 0
    cut = read(tmp_path, "cut")[0].query("id == 'H'")
    *whole, last = cut[~cut["special"]]["word"]
    assert set(whole) == {"the", "dog"}
    assert "dog".startswith(last), "a text may be cut inside a word"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "atnlrp"], "did you mean 'attnlrp'?"),
        (["--method", "alti_logit"], "use alti"),
        (["--column", "txt=review"], "it must name one of text, second, target, foil, id before the ="),
        (["--column", "text"], "--column must be written text=NAME, not 'text'"),
        (["--column", "text=revue"], "no row of .* holds a text: name its column with --column text=NAME"),
    ],
)
def test_what_does_not_fit_is_one_line(explain_file, tmp_path, arguments, message):
    code, _, err = explain_file(*arguments)
    assert code == 2
    assert len(err.splitlines()) == 1
    assert pd.Series([err]).str.contains(message).all(), err
    assert not list(tmp_path.glob("out*"))


def test_the_output_is_a_parquet_file_in_a_folder_that_is_there(explain_file, closelook, file, tmp_path):
    assert "name the file out.parquet" in explain_file(to="out.csv")[2]
    assert "there is no folder" in explain_file(to="none/out.parquet")[2]
    asked = ("explain-file", str(file), str(tmp_path / "o.parquet"), "--model", "demo/vit", "--column", "text=review")
    assert "reads images: explain-file reads texts" in closelook(*asked)[2]


def test_words_and_their_foils_are_explained_with_the_marks_of_their_places(closelook, inline, tmp_path):
    row = {"text": "The keys to the cabinet ___ old.", "target": "are", "foil": "is", "id": 1}
    without = {"text": "The teachers that saw the girl", "id": 2}
    (tmp_path / "words.jsonl").write_text(f"{json.dumps(row)}\n{json.dumps(without)}\n")
    for model in ("gpt2", "bert"):
        out = tmp_path / f"{model}.parquet"
        code, printed, err = closelook(
            "explain-file", str(tmp_path / "words.jsonl"), str(out), "--model", f"demo/{model}"
        )
        assert code == 0, err
        words, _ = read(tmp_path, model)
        assert "a text by itself" in printed
        assert set(words["decision"]) == {"are"}
        assert set(words["against"]) == {"is"}
        assert set(words["explanation"]) == {"contrastive"}
        text, located = row["text"].replace("___", ""), words[words["start"].notna()]
        assert [text[int(r.start) : int(r.end)] for r in located.itertuples()] == list(located["word"])
    assert "old" in set(read(tmp_path, "bert")[0]["word"])


def test_a_csv_file_without_a_header_is_told_so(closelook, tmp_path):
    (tmp_path / "mine.csv").write_text("The wolf looked fine.,5\nThe telescope looked dull.,1\n")
    code, _, err = closelook("explain-file", str(tmp_path / "mine.csv"), str(tmp_path / "out.parquet"), "-m", MODEL)
    assert code == 2
    assert "name its column with --column text=NAME, or add a first line with the names of columns" in err


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_a_file_of_another_encoding_is_read_by_its_name(closelook, inline, tmp_path, suffix):
    text = "The café looked dull."
    content = {"csv": f"text\n{text}\n", "jsonl": f'{{"text": "{text}"}}\n'}[suffix]
    file = tmp_path / f"mine.{suffix}"
    file.write_bytes(content.encode("latin-1"))
    command = ("explain-file", str(file), str(tmp_path / "out.parquet"), "--model", MODEL)
    for encoding, message in ((), "explain-file reads others by --encoding"), (("latin-2000",), "there is no encoding"):
        code, _, err = closelook(*command, *(part for name in encoding for part in ("--encoding", name)))
        assert (code, message in err) == (2, True)
    assert closelook(*command, "--encoding", "latin-1")[0] == 0
    assert "café" in " ".join(read(tmp_path)[0]["word"])
