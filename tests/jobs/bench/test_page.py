"""docs/performance.md shows the measured performance and nothing else."""

import pytest

from benchmarks import page
from benchmarks.parts.harness import Bench
from closelook.jobs.bench.storage import SHIPPED
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


def test_the_table_of_other_packages_is_what_their_result_says():
    text = page.README.read_text(encoding="utf-8")
    assert rewritten(text, page.peers(page.results()), *page.PEERS) == text, "run `python -m benchmarks.page`"
    bench = Bench("peers", "a processor", "closelook bench peers")
    for model, seconds in (("gpt2", 2.0), ("bert-base", 4.0)):
        of_model = bench.about(geometry=model)
        for package, rate in (("closelook", 60.0), ("captum", 20.0 * seconds)):
            of_model.row(peer="captum", method="gradient_x_input", package=package, texts_per_s=rate)
        name = "gradient_x_input, texts a second / captum"
        of_model.ratio(name, 3 / seconds, 1.5, "higher", peer="captum 0.9.0, torch 2.13.0")
    assert page.peers([(SHIPPED / "peers-cpu.json", bench.result())]).splitlines()[1:] == [
        "| package | model | method | texts a second | closelook's | ratio |",
        "| --- | --- | --- | --- | --- | --- |",
        "| captum 0.9.0 | gpt2 | gradient_x_input | 40.0 | 60.0 | 1.50 |",
        "| captum 0.9.0 | bert-base | gradient_x_input | 80.0 | 60.0 | 0.75 |",
    ]


def test_models_are_columns_and_missed_targets_say_so():
    result = page.tables(a_result()).splitlines()
    assert result == [
        "| ratio | target | gpt2 | llama |",
        "| --- | --- | --- | --- |",
        "| attnlrp / plain | ≤ 1.05 | 0.97 | 1.051, missed |",
        "| together / apart | ≤ 0.5 |  | 0.20 |",
        "",
        "| ratio | target | value |",
        "| --- | --- | --- |",
        "| worst error | ≤ 0.2 | 0.004 |",
    ]


def test_a_paragraph_names_command_device_versions_and_file():
    paragraph = page.paragraph(SHIPPED / "lrp-gpu.json", a_result())
    for part in ("`closelook bench lrp --json x.json`", "a fast GPU", "torch 2.", "jobs/bench/results/lrp-gpu.json"):
        assert part in paragraph


def test_only_what_is_between_the_markers_changes():
    text = f"before\n{page.START}\nold\n{page.END}\nafter\n"
    assert rewritten(text, "new\n", page.START, page.END) == f"before\n{page.START}\nnew\n{page.END}\nafter\n"
    with pytest.raises(ValueError, match="lacks the lines"):
        rewritten("no markers", "new\n", page.START, page.END)
