"""The code of the README and of docs/ gives what they say that it gives, and their links lead somewhere."""

import math
import re
import shlex
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

import closelook
from closelook.evaluation.benchmark import reading
from closelook.evaluation.benchmark.demo import generate, model_dir
from closelook.evaluation.schema import GENERIC
from closelook.jobs import results
from closelook.jobs.__main__ import app
from tests.jobs.conftest import blank_figures  # noqa: F401  # pages show no figure of a report
from tests.jobs.inline import without_ray
from tests.synthetic import Words, write_run, write_store

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page):
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.S)
    for target in re.findall(r"\]\((?!https?:)([^)#]*)[^)]*\)", text):
        assert (page.parent / target).exists(), f"{page.name} leads to {target}, which is not there"


METHODS_PAGE = ROOT / "docs" / "methods.md"


def test_the_first_method_of_ones_own_explains(monkeypatch):
    monkeypatch.chdir(ROOT)
    (sentence,) = blocks(METHODS_PAGE, "python")
    (method,) = (block for block in blocks(ROOT / "docs" / "extend.md", "python") if "NEAREST" in block)
    names: dict = {}
    for code in (sentence, method):
        exec(compile(code, "extend.md", "exec"), names)
    (relevance,) = names["NEAREST"](names["view"], names["batch"]).tokens.tolist()
    assert relevance == sorted(relevance)
    assert relevance[-1] == 1


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A small run under runs/demo, as the pages call it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(results, "load_tokenizer", lambda model: Words())
    return write_run(tmp_path / "runs" / "demo")


def test_the_store_is_read_as_its_page_says(run, capsys):
    names: dict = {}
    first, *others = blocks(ROOT / "docs" / "store.md", "python")
    exec(compile(first, "store.md", "exec"), names)
    front = names["relevance"]
    for code in others:
        exec(compile(code, "store.md", "exec"), names)
    rows = 8 * 4  # samples, explanations and embeddings
    assert len(front) == len(names["table"]) == len(names["data"]) == rows
    by_hand = names["table"].sort_values(["sample_id", "explanation", "embedding"])["relevance"]
    assert list(map(list, by_hand)) == list(
        map(list, front.sort_values(["sample_id", "explanation", "embedding"])["relevance"])
    )
    assert "relevance" in capsys.readouterr().out


def notebooks_page(inseq):
    """Blocks that use Inseq, or all others."""
    return [code for code in blocks(ROOT / "docs" / "notebooks.md", "python") if ("inseq" in code) == inseq]


def test_notebooks_can_do_what_their_page_says(captum, run, capsys, tmp_path, monkeypatch):
    names: dict = {}
    with without_ray():
        for code in notebooks_page(inseq=False):
            exec(compile(code, "notebooks.md", "exec"), names)
    result, answered = names["result"], names["answered"]
    assert result.token_attr.shape == (3, len(result.input_tokens))
    torch.testing.assert_close(result.seq_attr, result.token_attr.sum(0))
    assert not result.token_attr.isnan().any()
    assert result.output_tokens == [answer.target for answer in answered.answers]
    assert "attnlrp" in capsys.readouterr().out, "scores of made-up relevance"


def test_answers_are_explained_as_their_page_says(tmp_path, monkeypatch, capsys):
    page = ROOT / "docs" / "answers.md"
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for code in blocks(page, "python"):
        exec(compile(code, "answers.md", "exec"), names)
    assert names["explanation"]["attnlrp"].shape[0] == 2
    shares = names["asked"].shares()
    assert list(shares["part"]) == [
        "first token",
        "template",
        "system",
        "user",
        "answer so far",
        "biases",
        "attention",
        "rest",
    ]


def test_a_log_becomes_a_page_of_sources_as_the_page_of_answers_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    [block] = [block for block in blocks(ROOT / "docs" / "answers.md", "bash") if "log.jsonl" in block]
    for name, text in re.findall(r"^cat > (\S+) <<'END'\n(.*?)^END\n", block, re.S | re.M):
        (tmp_path / name).write_text(text)
    [run] = re.findall(r"^closelook (.*)$", block, re.M)
    with without_ray():
        app(shlex.split(run), standalone_mode=False)
    page = (tmp_path / "runs" / "log" / "report" / "sources.html").read_text(encoding="utf-8")
    for text in ("Alice joined a club in Naples", "ContextCite", "Screened"):
        assert text in page
    [file] = (tmp_path / "runs" / "log" / "sources").rglob("*method=attnlrp/*.parquet")
    claims = [row for row in pq.read_table(file).to_pylist() if row["explanation"] == "target" and not row["screened"]]
    first = sorted(int(np.argmax(claim["relevance"])) for claim in claims)
    assert first in ([0, 1], [1, 2]), "what Oscar did, and what Alice or Tina did"


@pytest.mark.usefixtures("inseq")
def test_inseq_reads_what_an_answer_is_explained_by():
    names: dict = {"closelook": closelook, "model": "demo/gpt2"}
    (code,) = notebooks_page(inseq=True)
    exec(compile(code, "notebooks.md", "exec"), names)
    answered, columns = names["answered"], names["result"].get_scores_dicts(do_aggregation=False)
    every = zip(answered.answers, answered["attnlrp"], columns["target_attributions"], strict=True)
    for answer, relevance, (at, word) in every:
        scores = columns["target_attributions"][at, word]
        assert (at, word.strip()) == (len(answer.tokens), answer.target)
        assert [token for _, token in scores][:at] == answer.tokens
        values = list(scores.values())
        assert values[:at] == pytest.approx(relevance[:at].tolist())
        assert all(map(math.isnan, values[at:]))


def test_the_stores_query_runs_in_duckdb(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_store(tmp_path / "runs" / "demo", tasks=("sva",), samples=8)
    (query,) = blocks(ROOT / "docs" / "store.md", "sql")
    assert {row[1] for row in duckdb.sql(query).fetchall()} >= {"attnlrp"}


def test_the_fine_tuning_page_teaches_a_model_the_words_of_a_task(tmp_path, monkeypatch, capsys):
    """On the demo's BERT with a fresh head, so that there is something to learn."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "paradigms" / "blimp5").mkdir(parents=True)
    rows = list(generate("sva", 400))
    pq.write_table(pa.Table.from_pylist(rows, GENERIC), tmp_path / "paradigms" / "blimp5" / "00000.parquet")
    model = AutoModelForMaskedLM.from_pretrained(model_dir("bert"))
    torch.manual_seed(0)
    dense = model.cls.predictions.transform.dense
    torch.nn.init.normal_(dense.weight, std=0.1)
    model.save_pretrained(tmp_path / "bert")
    AutoTokenizer.from_pretrained(model_dir("bert")).save_pretrained(tmp_path / "bert")
    (code,) = blocks(ROOT / "docs" / "finetune.md", "python")
    assert "FacebookAI/roberta-base" in code
    code = code.replace("FacebookAI/roberta-base", "bert").replace("3e-5", "1e-2")
    names: dict = {}
    exec(compile(code, "finetune.md", "exec"), names)
    assert names["after"] > max(0.9, names["before"] + 0.1)
    train, test = ({row["sample_id"] for row in names[half]} for half in ("train", "test"))
    assert not train & test
    assert len(train) == len(test) == 200
    survey = reading.survey(reading.Origin("blimp5", "samples", path=str(tmp_path / "roberta-paradigms")))
    assert survey.drawn == len(test)
    assert all(row["evidence"] for row in reading.read(survey))
