"""The explorer of answers in a real browser, from file://: pointed at, walked by keys, linked, and safe."""

import pytest

from closelook.evaluation.report.explorers import Explorer, MethodSources
from closelook.evaluation.report.explorers import answer_entry as entry
from closelook.evaluation.report.page import Provenance, Site
from tests.browser.axe import violations
from tests.browser.driver import WIDTHS, wait, write_page
from tests.evaluation.report.test_tables import some_results

pytestmark = pytest.mark.browser
ATTACK = "<script>document.title = 'broken'</script>"
FIRST, SECOND = f"Anna sang {ATTACK}.", "Bert ran."
PROMPT = f"Context: {FIRST} {SECOND} Question: What did they do? Answer:"
ANSWER = " Bert ran. Anna sang."


def answers():
    """Two answers of one model, the second of a chat, and one of a model without weights."""
    starts = [PROMPT.index(text) for text in (FIRST, SECOND)]
    units = [(start, start + len(text)) for start, text in zip(starts, (FIRST, SECOND), strict=True)]
    sentences = [(1, 10), (11, 21)]
    methods = [
        MethodSources("LRP of log p", [2.0, 1.0], [[-0.5, 1.5], [2.5, -0.5]]),
        MethodSources("ContextCite", [0.0, 3.0], [[0.0, 3.0], [0.0, 0.0]]),
        MethodSources("Leave-one-out", [5.0, 4.0], [[0.1, 4.0], [4.9, 0.0]]),
    ]
    facts = {"sample_id": "s1", "model": "llama", "task": "sources", "way": "remove", "untrained": False}
    facts |= {"evidence": None, "turns": None, "pair": (0, 1)}
    yield entry(PROMPT, units, ANSWER, sentences, methods, **facts | {"evidence": [True, False]})
    turns = [("system", 0, units[1][0]), ("user", units[1][0], len(PROMPT))]
    yield entry(PROMPT, units, " Yes.", [(1, 5)], methods, **facts | {"turns": turns, "sample_id": "s2"})
    yield entry(PROMPT, units, " No.", [(1, 4)], methods, **facts | {"untrained": True, "model": "gpt2"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("answers")
    explorers = {"sources.html": Explorer.of("answer", answers())}
    site = Site(Provenance("answers", "", {"closelook": "1"}), some_results(), [], [], explorers)
    write_page(root, site, "sources.html")
    return root


@pytest.fixture
def tab(chromium, folder):
    chromium.resize(*WIDTHS["desk"])
    chromium.open("about:blank")
    chromium.open((folder / "sources.html").as_uri())
    wait(chromium, "return document.querySelector('#answer .pane') !== null")
    yield chromium
    assert chromium.complaints() == []


def told(tab):
    """The line over each prompt: the source with the highest relevance."""
    return tab.script("return [...document.querySelectorAll('#answer .first')].map((line) => line.textContent)")


def colours(tab, pane=0):
    """The sign of each source's colour in a pane."""
    units = "[...document.querySelectorAll('#answer .pane')[arguments[0]].querySelectorAll('.unit')]"
    signs = "['pos', 'neg'].filter((sign) => unit.classList.contains(sign)).join()"
    return tab.script(f"return {units}.map((unit) => {signs})", pane)


def text(tab, selector):
    return tab.script("return document.querySelector(arguments[0]).textContent", selector)


def test_the_whole_answer_is_shown_first_with_the_sources_that_two_methods_name(tab):
    assert [line.split(":")[0] for line in told(tab)] == ["most from source 1 (2)", "most from source 2 (3)"]
    assert (colours(tab), colours(tab, 1)) == (["pos", "pos"], ["", "pos"])
    assert text(tab, "#answer .unit.evidence") == FIRST
    assert text(tab, "#answer .prompt") == PROMPT, "with all that is no source"
    assert tab.script("return document.title") != "broken"


def test_pointing_at_a_sentence_shows_its_sources_and_leaving_shows_those_of_the_chosen_part(tab):
    tab.hover("#answer .part[data-part='0']")
    assert colours(tab) == ["neg", "pos"]
    assert told(tab)[0] == f"most from source 2 (1.5): {SECOND}"
    tab.hover("#answer .part[data-part='1']")
    assert [line.split(":")[0] for line in told(tab)] == ["most from source 1 (2.5)", "from no source"]
    tab.hover("h1")
    assert told(tab)[0].startswith("most from source 1 (2)")


def test_arrow_keys_walk_the_sentences_and_letters_the_answers(tab):
    pressed = "return document.querySelector('#answer [aria-pressed=true]').textContent"
    assert tab.script(pressed) == "the whole answer"
    tab.press("ArrowRight")
    assert (tab.script(pressed), colours(tab)) == ("Bert ran.", ["neg", "pos"])
    tab.press("ArrowRight")
    tab.press("ArrowRight")
    assert (tab.script(pressed), tab.script("return document.activeElement.textContent")) == (
        "Anna sang.",
        "Anna sang.",
    )
    tab.press("ArrowLeft")
    assert tab.script(pressed) == "Bert ran."
    tab.press("j")
    wait(tab, "return document.querySelector('#answer .part').textContent === 'Yes.'")
    roles = tab.script(
        "return [...document.querySelectorAll('.pane:first-child .role')].map((role) => role.textContent)"
    )
    assert roles == ["system", "user"]
    tab.press("k")
    wait(tab, "return document.querySelector('#answer .part').textContent === 'the whole answer'")


def test_a_sent_address_opens_the_answer_by_its_two_methods(tab, folder):
    choice = "const field = document.querySelector('#answer select[name=second]'); field.value = 'Leave-one-out';"
    tab.script(f"{choice} field.dispatchEvent(new Event('change', {{bubbles: true}}))")
    assert told(tab)[1].startswith("most from source 1 (5)")
    address = tab.script("return location.href")
    tab.open("about:blank")
    tab.open(address)
    wait(tab, "return document.querySelector('#answer .pane') !== null")
    assert told(tab)[1].startswith("most from source 1 (5)")
    tab.open("about:blank")
    tab.open((folder / "sources.html").as_uri() + "#sample=s1&of=gpt2")
    wait(tab, "return document.querySelector('#answer .note') !== null")
    assert "random" in text(tab, "#answer .note")


def test_answers_are_filtered_by_model(tab):
    field = "const field = document.getElementById('answer-filters').elements.model; field.value = 'gpt2';"
    tab.script(f"{field} field.dispatchEvent(new Event('input', {{bubbles: true}}))")
    wait(tab, "return document.querySelectorAll('#answer-list button').length === 1")
    wait(tab, "return document.querySelector('#answer .part').textContent === 'No.'")


@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_is_accessible_small_and_fits_its_screen(tab, folder, width):
    tab.resize(*WIDTHS[width])
    assert violations(tab) == []
    assert tab.script("return document.documentElement.scrollWidth <= window.innerWidth")
    assert (folder / "sources.html").stat().st_size < 1e6
