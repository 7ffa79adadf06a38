"""The tables of docs/ say what records, rules and result files say."""

import pytest

from benchmarks.harness import Bench
from closelook.jobs.methods import METHODS
from closelook.lrp_core.operations.table import NAMES
from closelook.lrp_core.records.registry import OURS
from tools import pages


@pytest.mark.parametrize("name", pages.TABLES)
def test_a_page_is_what_the_records_say(name):
    page, text = pages.rewritten(name)
    assert page.read_text(encoding="utf-8") == text, "run `python -m tools.pages`"


def test_only_what_is_between_the_markers_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "DOCS", tmp_path)
    start, end = "<!-- config: written by python -m tools.pages -->", "<!-- end of config -->"
    (tmp_path / "config.md").write_text(f"before\n{start}\nold\n{end}\nafter\n")
    assert pages.rewritten("config")[1] == f"before\n{start}\n{pages.config()}{end}\nafter\n"
    (tmp_path / "config.md").write_text("no markers")
    with pytest.raises(ValueError, match="lacks the lines"):
        pages.rewritten("config")


def rows_of(table):
    return [line for line in table.splitlines() if line.startswith("| `")]


def test_every_method_of_ours_has_a_row_with_its_source():
    rows = rows_of(pages.methods())
    assert [row.split("`")[1] for row in rows] == [name for name in METHODS if METHODS.owner(name) == OURS]
    assert all(len(row.split(" | ")) == 7 for row in rows)


def test_every_rule_has_a_row():
    rows = rows_of(pages.operations())
    assert len(rows) == len(NAMES)
    assert all(row.count(" | ") == 2 for row in rows)


def a_result():
    bench = Bench("lrp", "a fast GPU", "closelook bench lrp --json x.json")
    for model, value in (("gpt2", 0.97), ("llama", 1.0513)):
        bench.about(geometry=model).ratio("attnlrp / plain", value, 1.05, "lower", q1=0.9, q3=1.1, n=3)
    bench.about(geometry="llama").ratio("together / apart", 0.2, 0.5, "lower")
    bench.ratio("worst error", 0.004, 0.2, "lower")
    return bench.result()


def test_missed_targets_say_so():
    assert pages.table(a_result()).splitlines() == [
        "| ratio | target | value |",
        "| --- | --- | --- |",
        "| gpt2: attnlrp / plain | ≤ 1.05 | 0.97 |",
        "| llama: attnlrp / plain | ≤ 1.05 | 1.051, missed |",
        "| llama: together / apart | ≤ 0.5 | 0.20 |",
        "| worst error | ≤ 0.2 | 0.004 |",
    ]


def test_a_paragraph_names_command_device_versions_and_file():
    paragraph = pages.paragraph(pages.RESULTS / "lrp-gpu.json", a_result())
    for part in ("`closelook bench lrp --json x.json`", "a fast GPU", "torch 2.", "benchmarks/results/lrp-gpu.json"):
        assert part in paragraph
