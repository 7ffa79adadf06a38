"""docs/performance.md shows the measured performance and nothing else."""

import pytest

from benchmarks import page
from benchmarks.harness import Bench
from closelook.jobs.commands.listings.documents import rewritten


def a_result():
    bench = Bench("lrp", "a fast GPU", "closelook bench lrp --json x.json")
    for model, value in (("gpt2", 0.97), ("llama", 1.0513)):
        bench.about(geometry=model).ratio("attnlrp / plain", value, 1.05, "lower", q1=0.9, q3=1.1, n=3)
    bench.about(geometry="llama").ratio("together / apart", 0.2, 0.5, "lower")
    bench.ratio("worst error", 0.004, 0.2, "lower")
    return bench.result()


def test_the_page_is_what_the_result_files_say():
    text = page.PAGE.read_text(encoding="utf-8")
    assert rewritten(text, page.section(page.results()), page.START, page.END) == text, (
        "run `python -m benchmarks.page`"
    )


def test_missed_targets_say_so():
    result = page.table(a_result()).splitlines()
    assert result == [
        "| ratio | target | value |",
        "| --- | --- | --- |",
        "| gpt2: attnlrp / plain | ≤ 1.05 | 0.97 |",
        "| llama: attnlrp / plain | ≤ 1.05 | 1.051, missed |",
        "| llama: together / apart | ≤ 0.5 | 0.20 |",
        "| worst error | ≤ 0.2 | 0.004 |",
    ]


def test_a_paragraph_names_command_device_versions_and_file():
    paragraph = page.paragraph(page.RESULTS / "lrp-gpu.json", a_result())
    for part in ("`closelook bench lrp --json x.json`", "a fast GPU", "torch 2.", "benchmarks/results/lrp-gpu.json"):
        assert part in paragraph


def test_only_what_is_between_the_markers_changes():
    text = f"before\n{page.START}\nold\n{page.END}\nafter\n"
    assert rewritten(text, "new\n", page.START, page.END) == f"before\n{page.START}\nnew\n{page.END}\nafter\n"
    with pytest.raises(ValueError, match="lacks the lines"):
        rewritten("no markers", "new\n", page.START, page.END)
