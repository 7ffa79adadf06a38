"""A package that brings a task, the source that feeds it and a metric, through entry points."""

import json

import pytest

from evaluation.schema import GENERIC, SCORES
from jobs.store import Store
from jobs.store.artifacts import samples_of
from tests.jobs.small import REPOSITORY, closelook, ended
from tests.packages import install

CODE = """
import json

from evaluation.benchmark.samples import sample
from evaluation.benchmark.sources.base import Source, one_sample
from evaluation.scoring.metrics import metric
from evaluation.tasks import Task


def lines(file):
    for number, line in enumerate(file.read_text().splitlines(), start=1):
        yield f"{file.name}:{number}", json.loads(line)


def parse(words):
    text = " ".join(words[:-2])
    return sample("pairs", text, len(text), *words[-2:], evidence=[(0, len(words[0]))])


PAIRS = Source(
    name="pairs",
    title="Pairs",
    url="https://example.org",
    licence="CC0",
    suffixes=(".txt",),
    records=lines,
    rows=one_sample(parse),
    brings_evidence=True,
)
TASK = Task(name="pairs", title="words in pairs", sources=(PAIRS,), figure="Figure 9")
TAKEN = Task(name="sva", title="another")


@metric("Chosen", unit="tokens")
def chosen(block):
    return block.count
"""
ROWS = [["keys", "to", "the", "cabinet", "are", "is"], ["bridge", "near", "the", "houses", "is", "are"]]


def run(tmp_path, *arguments, settings="tasks={pairs: {source: pairs, path: pairs.txt}}"):
    command = closelook(
        *arguments,
        *(
            "--config",
            "smoke",
            "--root",
            str(tmp_path / "root"),
            "--set",
            settings.replace("pairs.txt", str(tmp_path / "pairs.txt")),
        ),
        PYTHONPATH=f"{tmp_path}:{REPOSITORY}",
    )
    return ended(command)


@pytest.mark.ray
def test_the_task_the_source_and_the_metric_of_a_package_are_in_the_tables(tmp_path):
    install(tmp_path, "their_pairs", CODE, tasks="their_pairs:TASK", metrics="their_pairs:chosen")
    (tmp_path / "pairs.txt").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    code, out, err = run(tmp_path, "run")
    assert code == 0, out + err
    store = Store(str(tmp_path / "root"))
    assert store.read(samples_of("pairs").folder, GENERIC)["source"].to_pylist() == ["pairs"] * 2
    found = {row["value"] for row in store.read("scores", SCORES).to_pylist() if row["metric"] == "chosen"}
    assert min(found) >= 4
    table = store.read_bytes("report/tables/table1_random.csv").decode()
    assert "pairs,gpt2,AttnLRP,Chosen,tokens" in table
    code, out, _ = run(tmp_path, "export", "--to", str(tmp_path / "out"))
    assert code == 0, out
    card = (tmp_path / "out" / "README.md").read_text()
    assert "Samples of words in pairs (pairs), each with" in card
    assert "Pairs, <https://example.org>, CC0" in card


def test_a_task_that_takes_a_name_is_one_line_that_names_both_sides(tmp_path):
    install(tmp_path, "their_pairs", CODE, tasks="their_pairs:TAKEN")
    code, out, err = run(tmp_path, "prepare", settings="seed=0")
    assert (code, out) == (2, "")
    assert "their-pairs and closelook both bring a task named 'sva'" in err
    assert err.count("\n") == 1


def test_without_the_package_its_source_is_unknown(tmp_path):
    code, _, err = run(tmp_path, "prepare")
    assert code == 2
    assert "config key 'tasks.pairs.source': unknown source 'pairs'; there are " in err
