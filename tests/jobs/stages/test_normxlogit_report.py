"""The promise of docs/normxlogit.md: a report has a place for every table and figure of the paper."""

import json
import re
from pathlib import Path

import pytest

from closelook.evaluation.report.sections.costs import length_tables
from closelook.jobs.bench.record import Results
from closelook.jobs.bench.storage import write
from closelook.jobs.methods import METHODS
from closelook.jobs.plan.cells import validate
from closelook.jobs.stages.prepare import prepare
from closelook.jobs.stages.report import report
from closelook.jobs.store import Store
from tests.jobs.inline import without_ray
from tests.jobs.labelled import SST2, STS, WORDS, run_of, save
from tests.shown import rows_in
from tests.stages import attribute, evaluate, perturb
from tests.tiny import tiny_model

PAGE = Path(__file__).parents[3] / "docs" / "normxlogit.md"
CLASSIFIERS = ["random", {"gradient_x_input": {"reduce": "l1"}}, "normxlogit"]
LAYERS = ["random", "alti", "normxlogit", {"name": "logat_foil", "method": "logat", "word": "foil"}]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The files of a report, by name: the paper's experiments on tiny models under its models' names."""
    data = tmp_path_factory.mktemp("data")
    (data / "sst2.tsv").write_text("sentence\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in SST2))
    (data / "sts.csv").write_text("".join(f"{first},{second},{score}\n" for first, second, score in STS))
    pairs = [{"text": f"{a} b ___ d", "target": t, "foil": f, "evidence": "b"} for a in "afg" for t, f in ("ce", "ec")]
    (data / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs))
    for name, family, labels in (("sst2", "bert", ("negative", "positive")), ("stsb", "bert", ("score",))):
        save(data / f"bert-base-uncased-{name}", family, labels)
    save(data / "Llama-2-7b-hf-sst2", "gpt2", ("negative", "positive"), separator=False)
    save(data / "roberta-base-blimp5")
    tiny_model("bert", vocab_size=len(WORDS)).model.float().save_pretrained(data / "roberta-base-blimp5")
    models = [
        {"name": folder.name, "id": str(folder), "tasks": [folder.name.rpartition("-")[2]]}
        for folder in sorted(data.iterdir())
        if folder.is_dir()
    ]
    models[-1]["methods"] = LAYERS
    tasks = {
        "sst2": {"source": "sst2", "path": str(data / "sst2.tsv")},
        "stsb": {"source": "stsb", "path": str(data / "sts.csv")},
        "blimp5": {"source": "samples", "path": str(data / "pairs.jsonl")},
    }
    config = run_of(
        data,
        tmp_path_factory.mktemp("root"),
        models,
        tasks=tasks,
        methods=CLASSIFIERS,
        layers={"blimp5": None},
        perturb={"tasks": ["sst2", "stsb"]},
    )
    store = Store(config.root)
    store.create()
    validate(config)
    bench = Results("lrp", "a CPU")
    for method in ("normxlogit", "decompx"):
        facts = {"method": method, "length": 512, "layers": 4, "dtype": "float32", "fit": 321, "memory": "48 GiB"}
        times = {"median": 0.25, "q1": 0.2, "q3": 0.3, "n": 3}
        bench.row(part="table 4", geometry="bert-base", **facts, peak_bytes=100, **times, unit="s")
    write(bench.result(), store)
    with without_ray():
        for stage in (prepare, attribute, evaluate, perturb, report):
            assert not stage(config, store).failures
    return {path.removeprefix("report/"): store.read_bytes(path) for path in store.files("report", "", recursive=True)}


def test_every_table_and_figure_of_the_paper_has_its_place(files):
    listed = r"^\| (tables?|figures?) ([\d, to]+) \|.*\| (?:`(.+)`|–) \|$"
    rows = re.findall(listed, PAGE.read_text(encoding="utf-8"), re.M)
    shown = {*files, *(row["table"] for row in rows_in(files["numbers.csv"].decode()))}
    documented = set()
    for kind, numbers, file in rows:
        first, *more = map(int, re.findall(r"\d+", numbers))
        documented |= {(kind[0], number) for number in range(first, (more or [first])[-1] + 1)}
        pattern = re.escape(file).replace("TASK", "[a-z0-9]+").replace("WAY", "(mask|delete)").replace("MODEL", ".+")
        assert not file or any(re.fullmatch(pattern, name) for name in shown), file
    assert documented == {("t", number) for number in range(1, 6)} | {("f", number) for number in range(1, 29)}


def test_the_papers_numbers_stand_beside_ours_and_doubts_are_told(files):
    page = files["faithfulness.html"].decode()
    for doubt in ("sums of ten values", "LogAt contradict its AOPC", "worse than random (.362)", ".364 on its slides"):
        assert doubt in page
    assert "ALTI has the higher average precision in layers 2, 3, 9 and 11" in page
    for printed in ("0.341", "0.423", "0.281"):  # NormXLogit's in table 1: SST-2 of Llama 2 and BERT, STS-B of BERT
        assert f">{printed} (" in page
    assert "0.684 (" in page, "table 3"


def test_costs_by_length_have_those_of_the_paper_below(files):
    rows = rows_in(files["numbers.csv"].decode())
    ours = {"model": "random/bert-base, 4 layers, float32", "device": "a CPU"}
    theirs = {"model": "BERT", "device": "Quadro RTX 8000"}

    def values(table, **labels):
        chosen = [row for row in rows if row["table"] == table and labels.items() <= row.items()]
        return [(row["value"], row["low"], row["high"]) for row in chosen]

    seconds, none = ("0.25", "0.2", "0.3"), ("", "", "")
    assert values("seconds_by_length", tokens="512", **ours) == [seconds, none, none, none, seconds]
    of_paper = [value for value, _, _ in values("seconds_by_length", tokens="512", **theirs)]
    assert of_paper == ["2.36", "0.78", "0.8", "1.79", "0.36"]
    assert values("largest_batches", method="DecompX", **ours) == [("321", "", ""), none]
    texts, milliseconds = values("largest_batches", method="NormXLogit", **theirs)
    assert (float(texts[0]), round(float(milliseconds[0]), 1)) == (750, 0.5)


def test_shrunk_shapes_are_no_row_of_the_tables():
    assert length_tables([{"part": "table 4", "length": 32, "measure": "median", "method": "lrp"}], METHODS) == []
