"""`closelook explain-file`: rows as `closelook.explain` has them, computed once, whatever ends the process."""

import csv
import fcntl
import json
import os
import signal
import subprocess
import sys
import time

import pandas as pd
import pyarrow.parquet as pq
import pytest

import closelook as front
from closelook.evaluation.schema import TOKENS, WORDS, check
from closelook.jobs.commands.texts import explaining, parts
from tests.jobs.small import REPOSITORY

MODEL = "demo/bert-sentiment"
TEXTS = [
    "The ship that followed their clocks looked boring today.",
    "The famous telescope looked dull.",
    "Your nephews that drew our shelves looked very brilliant today.",
    "The wolf was never quite horrible.",
    "In the morning, their wolf looked fine.",
]


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
def explain_file(closelook, file, tmp_path):
    """Run the command on the file, with `arguments`: (exit code, stdout, stderr)."""

    def run(*arguments, to="out.parquet", file=file):
        columns = ("--column", "text=review", "--column", "id=case")
        return closelook("explain-file", str(file), str(tmp_path / to), "--model", MODEL, *columns, *arguments)

    return run


def read(tmp_path, name="out"):
    for suffix, schema in (("", WORDS), (".tokens", TOKENS)):
        check(pq.read_schema(tmp_path / f"{name}{suffix}.parquet"), schema, name)
    return pd.read_parquet(tmp_path / f"{name}.parquet"), pd.read_parquet(tmp_path / f"{name}.tokens.parquet")


def test_rows_are_what_explain_tells_of_each_text_and_are_named_by_their_users_ids(explain_file, tmp_path):
    code, out, err = explain_file("--method", "attnlrp,gradient_l2")
    assert code == 0
    assert "7 rows: 5 texts explained + 1 of the same content + 1 without an explanation" in out
    assert err == "  reviews.csv:7: empty text\n"
    words, tokens = read(tmp_path)
    assert list(dict.fromkeys(zip(tokens["id"], tokens["row"], strict=True))) == [
        ("A", 1), ("B", 2), ("G", 7), ("C", 3), ("D", 4), ("5", 5)
    ]  # fmt: skip
    explained = front.explain(TEXTS, model=MODEL, method=["attnlrp", "gradient_l2"])
    of_id = dict(zip("ABCD5", explained, strict=True)) | {"G": explained[1]}
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


def test_words_are_the_characters_of_the_text_that_they_name(explain_file, tmp_path):
    assert explain_file()[0] == 0
    words, _ = read(tmp_path)
    texts = dict(zip("ABCD5", TEXTS, strict=True)) | {"G": TEXTS[1]}
    located = words[~words["special"]]
    assert len(located) > 30
    for row in located.itertuples():
        assert texts[row.id][int(row.start) : int(row.end)] == row.word
    assert words[words["special"]]["start"].isna().all()


def test_the_probability_is_that_of_the_models_softmax(explain_file, tmp_path):
    assert explain_file()[0] == 0
    _, tokens = read(tmp_path)
    view = front.open_model(MODEL).view
    tokenizer = view.read_tokenizer()
    for name, text in zip("ABCD5", TEXTS, strict=True):
        probabilities = view.model(**tokenizer(text, return_tensors="pt")).logits[0].softmax(-1)
        [probability] = set(tokens[tokens["id"] == name]["probability"])
        assert probability == pytest.approx(float(probabilities.max()), abs=1e-5)


def test_a_second_call_computes_nothing_and_other_settings_need_another_file(explain_file, file, tmp_path, monkeypatch):
    assert explain_file()[0] == 0
    before = (tmp_path / "out.parquet").read_bytes()
    monkeypatch.setattr(explaining, "computed", lambda *_: pytest.fail("it computes again"))
    assert explain_file()[1].startswith("nothing to do: ")
    code, _, err = explain_file("--method", "lrp")
    assert code == 2
    assert "out.parquet holds rows of other texts, methods or models: name another file or remove it" in err
    file.write_text(file.read_text() + "H;One more.;1\n")
    assert explain_file()[0] == 2
    assert (tmp_path / "out.parquet").read_bytes() == before


def test_a_file_of_ones_own_where_the_rows_by_token_go_is_not_overwritten(explain_file, tmp_path):
    (tmp_path / "out.tokens.parquet").write_bytes(b"mine")
    code, _, err = explain_file()
    assert code == 2
    assert "out.tokens.parquet, for the rows by token, holds something else: name another file" in " ".join(err.split())
    assert (tmp_path / "out.tokens.parquet").read_bytes() == b"mine"
    (tmp_path / "out.tokens.parquet").unlink()
    assert explain_file()[0] == 0
    (tmp_path / "out.parquet").unlink()
    assert explain_file("--method", "lrp")[0] == 0, "rows of this command are replaced"


def test_parts_of_one_text_and_processes_of_their_own_give_the_same_rows(explain_file, tmp_path, monkeypatch):
    assert explain_file()[0] == 0
    monkeypatch.setattr(parts, "PART_TEXTS", 1)
    assert explain_file(to="parts.parquet")[0] == 0
    monkeypatch.setattr(parts, "PART_TEXTS", 2)
    assert explain_file("--workers", "2", to="workers.parquet")[0] == 0
    for whole, *others in zip(read(tmp_path), read(tmp_path, "parts"), read(tmp_path, "workers"), strict=True):
        for other in others:
            pd.testing.assert_frame_equal(whole, other, atol=1e-5)
    assert not list(tmp_path.glob("*.parts"))
    assert sorted(path.name for path in tmp_path.glob("out*")) == [
        "out.parquet", "out.tokens.parquet", "out.unexplained.csv"
    ]  # fmt: skip


def test_rows_without_an_explanation_are_listed_with_the_reason(explain_file, file, tmp_path):
    file.write_text(file.read_text() + f"H;{'the dog ' * 200};1\n")
    code, out, err = explain_file()
    assert code == 0
    assert "5 texts explained + 1 of the same content + 2 without" in out
    reason = "too long: 802 tokens, the model takes 64; --truncate reads a part of it"
    assert reason in err
    listed = list(csv.DictReader((tmp_path / "out.unexplained.csv").read_text().splitlines()))
    assert [(row["row"], row["id"], row["where"]) for row in listed] == [
        ("6", "F", "reviews.csv:7"),
        ("8", "H", "reviews.csv:9"),
    ]
    assert listed[1]["reason"].endswith(reason)
    assert explain_file("--truncate", to="cut.parquet")[0] == 0
    cut = read(tmp_path, "cut")[0].query("id == 'H'")
    assert len(cut) > 20
    *whole, last = cut[~cut["special"]]["word"]
    assert set(whole) == {"the", "dog"}
    assert "dog".startswith(last), "a text may be cut inside a word"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "atnlrp"], "did you mean 'attnlrp'?"),
        (["--method", "alti_logit"], "use alti"),
        (
            ["--column", "txt=review"],
            "it must name one of text, second, target, foil, id before the =",
        ),
        (["--column", "text"], "--column must be written text=NAME, not 'text'"),
        (["--column", "text=revue"], "no row of .* holds a text; the first at reviews.csv:2: no column 'revue'"),
        (["--explanation", "log"], "attnlrp has no explanation 'log'; choose contrastive or target or log_prob"),
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
    assert "reads images: explain-file reads texts" in closelook(
        "explain-file", str(file), str(tmp_path / "o.parquet"), "--model", "demo/vit", "--column", "text=review"
    )[2]  # fmt: skip


def test_words_and_their_foils_are_explained_with_the_marks_of_their_places(closelook, tmp_path):
    rows = [
        {"text": "The keys to the cabinet ___ old.", "target": "are", "foil": "is", "id": 1},
        {"text": "The teachers that saw the girl", "id": 2},
    ]
    (tmp_path / "words.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for model in ("gpt2", "bert", "t5"):
        out = tmp_path / f"{model}.parquet"
        code, _, err = closelook("explain-file", str(tmp_path / "words.jsonl"), str(out), "--model", f"demo/{model}")
        assert (code, err) == (0, "")
        words, _ = read(tmp_path, model)
        first, second = words[words["id"] == "1"], words[words["id"] == "2"]
        assert set(first["decision"]) == {"are"}
        assert set(first["against"]) == {"is"}
        assert set(first["explanation"]) == {"contrastive"}
        assert set(second["explanation"]) == {"target"}
        assert second["against"].isna().all()
        for frame, row in ((first, rows[0]), (second, rows[1])):
            located = frame[frame["start"].notna()]
            assert [row["text"][int(r.start) : int(r.end)] for r in located.itertuples()] == list(located["word"])
        assert words["probability"].between(0, 1).all()
    assert "old" in set(read(tmp_path, "bert")[0].query("id == '1'")["word"])


@pytest.mark.nightly  # by day, a worker of it dies
def test_a_call_that_is_killed_goes_on_and_computes_nothing_twice(file, tmp_path):
    """The process is killed when it has written two of five parts; another one is asked again."""
    script = f"""
import sys
from closelook.jobs.commands.texts import parts
from closelook.jobs.__main__ import main
parts.PART_TEXTS = 1
compute = parts.compute
def recorded(opened, methods, texts, *arguments):
    with open({str(tmp_path / "computed")!r}, "a") as stream:
        stream.write(texts[0].text + chr(10))
    return compute(opened, methods, texts, *arguments)
parts.compute = recorded
sys.argv = ["closelook", "explain-file", {str(file)!r}, {str(tmp_path / "out.parquet")!r}, "--model", {MODEL!r},
            "--column", "text=review", "--column", "id=case"]
main()
"""
    command = [sys.executable, "-c", script]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src")}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    done = tmp_path / "out.parts"
    while process.poll() is None and len(list(done.glob("*.words.parquet"))) < 2:
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    kept = len(list(done.glob("*.words.parquet")))
    first = (tmp_path / "computed").read_text().splitlines()
    assert 2 <= kept <= 5
    second = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert second.returncode == 0, second.stderr
    assert f"{kept} of 5 texts were explained before" in second.stdout
    every = (tmp_path / "computed").read_text().splitlines()
    assert every[len(first) :] == TEXTS[kept:], "only the part in hand is computed again"
    assert set(read(tmp_path)[0]["id"]) == {"A", "B", "C", "D", "5", "G"}


def test_a_worker_that_dies_is_told_and_the_command_goes_on(explain_file, tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "PART_TEXTS", 2)

    def broken(*_):
        raise parts.WorkerDied("a process ended in the middle of a part")

    with monkeypatch.context() as context:
        context.setattr(parts, "_in_processes", broken)
        code, _, err = explain_file("--workers", "2")
    assert code == 1
    assert "error: a process ended in the middle of a part: run the same command again to continue" in err
    assert explain_file()[0] == 0


def test_two_calls_do_not_write_one_file(explain_file, tmp_path):
    (tmp_path / "out.parts").mkdir()
    with (tmp_path / "out.parts" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, _, err = explain_file()
    assert code == 2
    assert "another process is writing" in err


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_a_file_of_another_encoding_is_read_by_its_name(closelook, tmp_path, encoding, suffix):
    text = "The café looked dull."
    content = {"csv": f"text\n{text}\n", "jsonl": f'{{"text": "{text}"}}\n'}[suffix]
    file = tmp_path / f"mine.{suffix}"
    file.write_bytes(content.encode(encoding))
    command = ("explain-file", str(file), str(tmp_path / "out.parquet"), "--model", MODEL)
    code, _, err = closelook(*command)
    assert code == 2
    if encoding == "latin-1":
        assert "explain-file reads others by --encoding, such as latin-1" in err
    code, _, err = closelook(*command, "--encoding", "latin-2000")
    assert (code, "there is no encoding 'latin-2000'" in err) == (2, True)
    code, _, err = closelook(*command, "--encoding", encoding)
    assert code == 0, err
    assert "café" in " ".join(read(tmp_path)[0]["word"])


def test_a_csv_file_without_a_header_is_told_so(closelook, tmp_path):
    (tmp_path / "mine.csv").write_text("The wolf looked fine.,5\nThe telescope looked dull.,1\n")
    code, _, err = closelook("explain-file", str(tmp_path / "mine.csv"), str(tmp_path / "out.parquet"), "-m", MODEL)
    assert code == 2
    assert "name it with --column text=NAME, or add a first line with the names of columns" in err
