"""The explorer of ten thousand samples in a real browser, from file://: it opens at once and reaches all of them."""

import shutil
from functools import cache
from pathlib import Path

import pytest

from closelook.evaluation.report.explorers import sample_explorer
from closelook.evaluation.report.heatmaps.tokens import Line, data
from closelook.evaluation.report.page import Provenance, Site
from tests.browser.driver import wait, write_page
from tests.evaluation.report.test_tables import some_results

pytestmark = pytest.mark.browser
SAMPLES = 10_000
METHODS = ("AttnLRP", "LRP", "Gradient l2", "Random")


def entries():
    """Under two models; every hundredth has two attractors."""
    tokens = [f" word{at}" for at in range(12)]
    words = "".join(tokens)
    for at in range(SAMPLES):
        for shift, model in enumerate(("gpt2", "llama")):
            facts = {"sample_id": f"{at:020x}", "model": model, "task": "sva", "correct": at % 3 > 0}
            text = f"Sample {at}:{words}"
            more = {"attractors": 2 * (at % 100 == 0), "target": "are", "slot": len(text), "margin": 1.0, "text": text}
            yield drawn((at + shift) % 17) | facts | more


@cache
def drawn(kind):
    """The data of a heat map, without facts about the sample; equal kinds give equal data."""
    values = [kind * (at + 3) % 17 / 10 - 0.8 for at in range(12)]
    lines = [Line(method, values[step:] + values[:step], "target") for step, method in enumerate(METHODS)]
    return data([f" word{at}" for at in range(12)], lines)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("large")
    explorers = {"samples.html": sample_explorer(entries())}
    write_page(
        root, Site(Provenance("large", "", {"closelook": "1"}), some_results(), [], [], explorers), "samples.html"
    )
    return root


@pytest.fixture
def tab(chromium, folder):
    chromium.resize(1440, 1000)
    chromium.open((folder / "samples.html").as_uri())
    yield chromium
    assert chromium.complaints() == []


def count(tab):
    return tab.script("return document.getElementById('sample-count').textContent")


def shown(tab):
    return tab.script("return document.querySelector('#sample .sentence')?.textContent ?? ''")


def all_read(tab):
    wait(tab, "return !/reading/.test(document.getElementById('sample-count').textContent)")


def choose(tab, name, value):
    tab.script(
        "const field = document.getElementById('sample-filters').elements[arguments[0]];"
        "field.value = arguments[1]; field.dispatchEvent(new Event('input', {bubbles: true}))",
        name,
        value,
    )


def test_the_page_of_ten_thousand_samples_is_small_and_shows_the_first_without_another_file(folder, chromium, tmp_path):
    """The first view loads one page only. Its milliseconds depend on the machine, so they are printed."""
    assert (folder / "samples.html").stat().st_size < 1e6
    largest = max(path.stat().st_size for path in folder.glob("samples*/*.html"))
    assert largest < 250_000
    alone = Path(shutil.copy(folder / "samples.html", tmp_path))
    chromium.open(alone.as_uri())
    wait(chromium, "return document.querySelectorAll('#sample .line').length === 4")
    took = chromium.script("return performance.now()")
    print(f"first view after {took:.0f} ms, page of {alone.stat().st_size / 1000:.0f} kB")
    chromium.complaints()  # about the files that were left behind


def test_every_sample_is_listed_a_hundred_at_a_time(tab):
    all_read(tab)
    assert count(tab) == "1–100 of 20,000"
    assert tab.script("return document.querySelectorAll('#sample-list button').length") == 100
    tab.script("document.querySelector('#sample-pager [data-by=\"1\"]').click()")
    assert count(tab) == "101–200 of 20,000"
    assert tab.script("return document.querySelector('#sample-list .snippet').textContent").startswith("Sample 50:")


def test_a_filter_finds_samples_of_every_leaf_and_the_last_one_is_shown(tab):
    all_read(tab)
    choose(tab, "attractors", "2")
    choose(tab, "model", "llama")
    assert count(tab) == "100 of 20,000"
    tab.script("[...document.querySelectorAll('#sample-list button')].pop().click()")
    wait(tab, "return document.querySelector('#sample .sentence')?.textContent.startsWith('Sample 9900:')")
    assert "llama" in tab.script("return document.querySelector('.sample-facts').textContent")


def test_a_sent_address_opens_its_sample_and_filters(tab, folder):
    link = (folder / "samples.html").as_uri() + f"#sample={9_877:020x}&of=llama&model=llama&correct=true"
    tab.open("about:blank")
    tab.open(link)
    wait(tab, "return document.querySelector('#sample .sentence')?.textContent.startsWith('Sample 9877:')")
    all_read(tab)
    assert count(tab).endswith("of 6,666 of 20,000")
    assert tab.script("return document.querySelector('#sample-list .active .snippet').textContent").startswith(
        "Sample 9877:"
    )


def test_back_and_forward_go_through_samples_and_filters(tab):
    first = shown(tab)
    tab.script("document.querySelectorAll('#sample-list button')[2].click()")
    wait(tab, "return document.querySelector('#sample .sentence').textContent !== arguments[0]", first)
    second = shown(tab)
    choose(tab, "model", "llama")
    wait(tab, "return document.querySelector('#sample .sentence').textContent !== arguments[0]", second)
    tab.script("history.back()")
    wait(tab, "return document.querySelector('#sample .sentence').textContent === arguments[0]", second)
    assert tab.script("return document.getElementById('sample-filters').elements.model.value") == ""
    tab.script("history.back()")
    wait(tab, "return document.querySelector('#sample .sentence').textContent === arguments[0]", first)
    tab.script("history.forward()")
    wait(tab, "return document.querySelector('#sample .sentence').textContent === arguments[0]", second)


def test_two_models_stand_beside_each_other_on_one_sample(tab):
    choose(tab, "beside", "llama")
    wait(tab, "return document.querySelectorAll('#sample .heatmap').length === 2")
    facts = tab.script("return [...document.querySelectorAll('.sample-facts')].map((each) => each.innerText)")
    assert ["gpt2" in facts[0], "llama" in facts[1]] == [True, True]


def test_the_list_is_one_stop_of_the_tab_key(tab):
    tab.script("document.querySelectorAll('#sample-list button')[0].focus()")
    tab.press("j")
    assert tab.script("return document.querySelectorAll('#sample-list button[tabindex=\"0\"]').length") == 1
    focused = "return document.activeElement === document.querySelectorAll('#sample-list button')[1]"
    assert tab.script(focused)


def test_a_leaf_that_is_not_there_is_said(folder, chromium):
    lost = folder / "samples" / "3.html"
    text = lost.read_text(encoding="utf-8")
    lost.unlink()
    try:
        chromium.open((folder / "samples.html").as_uri())
        wait(
            chromium,
            "return (async () => { try { await Leaves.open('samples').get(arguments[0]); return false; }"
            "catch (error) { return error.message.startsWith('samples/3.html cannot be read'); } })()",
            chromium.script("return JSON.parse(document.getElementById('samples-leaves').textContent).starts[3]"),
        )
    finally:
        lost.write_text(text, encoding="utf-8")
        chromium.complaints()
