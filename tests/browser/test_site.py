"""The site in a real browser, from file://: it opens, sorts, filters, shows heatmaps, and text stays text.

Screenshots of every page at desk and phone width are kept in tests/artifacts.
"""

from pathlib import Path

import numpy as np
import pytest

from closelook.evaluation.benchmark.pictures import Preprocessing
from closelook.evaluation.report.heatmaps.overlay import patch_names, with_picture
from closelook.evaluation.report.heatmaps.tokens import EVERY_LABEL, Line, data
from closelook.evaluation.report.page import Provenance, explain_page
from closelook.evaluation.report.table import SMALLEST_ROW
from tests.browser.driver import ATTACK, WIDTHS, wait

pytestmark = pytest.mark.browser
ARTIFACTS = Path(__file__).parents[1] / "artifacts"


def column(tab, table, label):
    """The visible numbers of a column, top to bottom."""
    return tab.script(
        "const table = document.getElementById(arguments[0]);"
        "const heads = [...table.querySelectorAll('tr.labels th')];"
        "const at = heads.findIndex((head) => head.innerText.replace(/\\s+/g, ' ').startsWith(arguments[1]));"
        "return [...table.tBodies[0].rows].filter((row) => !row.hidden)"
        ".map((row) => row.cells[at]).map((cell) => cell.dataset.value ? +cell.dataset.value : cell.innerText)",
        table,
        label,
    )


def click(tab, selector):
    tab.script("document.querySelector(arguments[0]).click()", selector)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("name", ["index.html", "tables.html", "controls.html", "curves.html", "samples.html"])
@pytest.mark.parametrize("width", WIDTHS)
def test_pages_open_and_fit_their_width(page, name, width):
    tab = page(name)
    tab.resize(*WIDTHS[width])
    assert tab.script("return document.querySelector('h1').innerText.length") > 0
    assert tab.script("return document.documentElement.scrollWidth <= window.innerWidth"), "nothing sticks out"
    assert tab.script("return getComputedStyle(document.querySelector('.provenance')).display") != "none"
    tab.screenshot(ARTIFACTS / f"{name.removesuffix('.html')}_{width}.png")


def test_a_table_sorts_by_the_column_that_is_clicked(page):
    tab = page("tables.html")
    before = column(tab, "table1", "PG")
    click(tab, "#table1 tr.labels th:nth-child(3) button")
    assert column(tab, "table1", "PG") == sorted(before, reverse=True)
    click(tab, "#table1 tr.labels th:nth-child(3) button")
    assert column(tab, "table1", "PG") == sorted(before)
    assert tab.script("return document.querySelector('#table1 th[aria-sort]').getAttribute('aria-sort')") == "ascending"


def opened(page):
    """The overview with its details open."""
    tab = page()
    tab.script("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
    return tab


def test_sorting_by_a_difference_leaves_what_has_no_number_below(page):
    tab = opened(page)
    click(tab, "#table1_random tr.labels th:nth-child(5) button")
    values = column(tab, "table1_random", "Δ Random")
    numbers = [value for value in values if not isinstance(value, str)]
    assert values == [*sorted(numbers, reverse=True), *["–"] * 8]  # of random, and of the smallest difference told


def test_methods_and_metrics_can_be_filtered(page):
    tab = opened(page)
    methods = {"AttnLRP", "Gradient l2", "AttnRollout", "Random"}
    assert set(column(tab, "table1_random", "method")) == methods | {SMALLEST_ROW}
    click(tab, "[data-filter=method] input[value=AttnLRP]")
    assert set(column(tab, "table1_random", "method")) == methods - {"AttnLRP"} | {SMALLEST_ROW}, "it is of all methods"
    click(tab, "[data-filter=task] input[value=qa]")
    assert set(column(tab, "table1_random", "task")) == {"sva"}
    shown = "return [...document.querySelectorAll('#table1_random tr.groups th[data-group]')]"
    shown += ".filter((head) => head.checkVisibility()).map((head) => head.innerText)"
    assert tab.script(shown) == ["PG", "MRR", "RMA", "PTA"]
    click(tab, "[data-filter=metric] input[value=PG2]")
    assert tab.script(shown) == ["PG", "PG2", "MRR", "RMA", "PTA"]


def test_rows_of_a_long_table_can_be_filtered_by_what_names_them(page):
    tab = page("curves.html")
    assert set(column(tab, "runtime", "pass")) == {"gradients", "rollout"}
    click(tab, "[data-filter=pass] input[value=rollout]")
    assert set(column(tab, "runtime", "pass")) == {"gradients"}
    click(tab, "[data-filter=model] input[value=gpt2]")
    assert set(column(tab, "runtime", "model")) == {"llama"}


def test_what_names_a_row_stays_in_sight_while_its_numbers_scroll(page):
    tab = page("tables.html")
    tab.resize(*WIDTHS["phone"])
    tab.script("dispatchEvent(new Event('resize'))")
    left = "return document.querySelector('#table1 tbody th:nth-child(2)').getBoundingClientRect().left"
    before = tab.script(left)
    scroll = "const box = document.querySelector('#table1').parentElement; box.scrollLeft = 200; return box.scrollLeft"
    assert tab.script(scroll) == 200
    assert tab.script(left) == before


@pytest.mark.parametrize("width", WIDTHS)
def test_a_figure_fits_the_screen_or_scrolls_inside_itself(page, width):
    tab = page("curves.html")
    tab.resize(*WIDTHS[width])
    shown, room, overflow, whole, screen = tab.script(
        "const image = document.querySelector('.plot img'), box = image.closest('.scroll');"
        "return (async () => { await image.decode();"
        "  return [image.width, box.clientWidth, getComputedStyle(box).overflowX,"
        "          document.documentElement.scrollWidth, window.innerWidth]; })()"
    )
    assert shown > 250
    assert shown <= room or overflow in ("auto", "scroll")
    assert whole <= screen, "the page itself does not scroll sideways"


def test_a_heatmap_shows_relevance_evidence_and_special_tokens(page):
    tab = page("samples.html")
    assert tab.script("return document.querySelectorAll('#sample .line').length") == 4
    colours = tab.script(
        "return [...document.querySelectorAll('#sample .line:first-child .tok')]"
        ".map((token) => [token.className, getComputedStyle(token)])"
        ".map(([name, style]) => [name, style.backgroundColor, style.textDecorationLine])"
    )
    painted = {colour for name, colour, _ in colours if "pos" in name or "neg" in name}
    assert len(painted) > 1
    assert all("underline" in line for name, _, line in colours if "evidence" in name)
    assert any("evidence" in name for name, _, _ in colours)
    assert [name for name, colour, _ in colours if "special" in name and colour != "rgba(0, 0, 0, 0)"] == []


def test_hovering_a_token_tells_its_value_in_every_line(page):
    tab = page("samples.html")
    tab.hover("#sample .tok[data-at='2']")
    values = tab.script("return [...document.querySelectorAll('#sample .value')].map((value) => value.innerText)")
    assert all(values)
    assert tab.script("return document.querySelectorAll('#sample .tok.chosen').length") == 4


def test_the_keyboard_walks_samples_models_and_tokens(page):
    tab = page("samples.html")
    facts = "return document.querySelector('#sample .sample-facts').innerText"
    first = tab.script(facts)
    tab.press("j")
    second = tab.script(facts)
    assert second != first
    tab.press("k")
    assert tab.script(facts) == first
    tab.press("m")
    assert "model llama" in tab.script(facts).replace("\n", " ")
    tab.press("ArrowRight")
    tab.press("ArrowRight")
    assert tab.script("return document.querySelector('#sample .tok.chosen').dataset.at") == "1"
    tab.press("e")
    assert tab.script("return document.querySelector('[name=explanation]').value") == "target"


def test_samples_filter_by_task_model_prediction_attractors_and_disagreement(page):
    tab = page("samples.html")
    data = tab.script("return Leaves.open('samples').first")

    def shown(name, value):
        return tab.script(
            "const field = document.getElementById('sample-filters').elements[arguments[0]];"
            "field.value = arguments[1];"
            "field.dispatchEvent(new Event('input', {bubbles: true}));"
            "return document.querySelectorAll('#sample-list li').length",
            name,
            value,
        )

    assert shown("task", "qa") == sum(entry["task"] == "qa" for entry in data)
    assert shown("task", "") == len(data)
    assert shown("model", "llama") == sum(entry["model"] == "llama" for entry in data)
    shown("model", "")
    assert shown("correct", "false") == sum(not entry["correct"] for entry in data)
    shown("correct", "")
    assert shown("attractors", "1") == sum(entry["attractors"] == 1 for entry in data)
    shown("attractors", "")
    assert shown("disagreement", "50") == sum(entry["disagreement"] >= 0.5 for entry in data)


def test_an_explained_sentence_is_a_heatmap_page(page, site):
    lines = [Line("AttnLRP", [0.1, 2.0, -1.0]), Line("LRP", [0.5, 0.2, 0.1])]
    entry = data(["The", " keys", " to"], lines, text=ATTACK, slot=len(ATTACK), target="are", foil="is", model="gpt2")
    provenance = Provenance("explain", "", {"closelook": "0.1"}, models=[("gpt2", "sha256:1")])
    (site / "explain.html").write_text(explain_page([entry], "Why are rather than is", provenance), encoding="utf-8")
    tab = page("explain.html")
    names = tab.script("return [...document.querySelectorAll('#sample strong')].map((name) => name.innerText)")
    assert names == ["AttnLRP", "LRP"]
    assert tab.script("return document.querySelectorAll('#sample .tok.pos, #sample .tok.neg').length") > 2
    assert not tab.script("return document.querySelector('.list').checkVisibility()")
    tab.screenshot(ARTIFACTS / "explain_desk.png")


def single(site, entry, model):
    """The explorer of one entry, as a page beside the site's."""
    provenance = Provenance("explain", "", {"closelook": "0.1"}, models=[(model, "sha256:1")])
    (site / f"{model}.html").write_text(explain_page([entry], model, provenance), encoding="utf-8")
    return f"{model}.html"


def test_what_a_decoder_has_seen_stands_behind_what_is_read(page, site):
    lines = [Line("AttnLRP", [0.5, -2.0], decoder=[0.25, 1.0]), Line("AtMan", [1.0, 0.5])]
    decoder_tokens = ["‹start›", " fort"]
    entry = data(["Where", " now"], lines, decoder=decoder_tokens, text="Where now", slot=9, target="ress", model="t5")
    tab = page(single(site, entry, "t5"))
    words = "return [...document.querySelectorAll('#sample .seen')].map((seen) => seen.innerText)"
    assert tab.script(words) == ["‹start›fort"], "of AtMan, which does not speak of the decoder, there is none"
    tab.hover("#sample .seen .tok:nth-child(2)")
    assert tab.script("return [...document.querySelectorAll('#sample .value')].map((one) => one.innerText)") == [
        "1",
        "",
    ]
    assert tab.script("return document.querySelector('#sample .chosen').title") == "fort: 1"


def test_every_label_of_a_classifier_is_a_row(page, site):
    lines = [Line("LRP", [0.5, -2.0], "target"), Line("Rollout", [1.0, 0.5])]
    lines += [Line("LRP", values, EVERY_LABEL, of=of) for of, values in (("bad", [-1.0, 3.0]), ("<b>", [0.5, -2.0]))]
    entry = data(["Not", " good"], lines, text="Not good", slot=8, target="bad", model="classes")
    tab = page(single(site, entry, "classes"))
    script = "return [...document.querySelectorAll('#sample .method')].map((one) => one.innerText)"
    assert [words.split() for words in tab.script(script)] == [["LRP"], ["Rollout", "white", "is", "0.5"]]
    tab.script(
        "const field = document.getElementById('sample-filters').elements.explanation; field.value = arguments[0];"
        "field.dispatchEvent(new Event('input', {bubbles: true}))",
        EVERY_LABEL,
    )
    wait(tab, "return document.querySelectorAll('#sample .line').length === 3")
    assert [words.split() for words in tab.script(script)] == [
        ["Rollout", "white", "is", "0.5"],
        ["LRP", "bad"],
        ["LRP", "<b>"],
    ]


def test_a_picture_is_shown_under_its_relevance(site, page):
    preparation = Preprocessing.of({}, {"image_size": 24, "patch_size": 8})
    evidence = [False, True, *[False] * 8]
    lines = [Line("AttnLRP", [0.1, *range(9)], "target"), Line("Rollout", [0.0, 5.0, *range(8)], "target")]
    shown = data(
        patch_names(preparation), lines, evidence, [True] + [False] * 9, text="a.png", slot=5, target="cat", model="vit"
    )
    pixels = np.random.default_rng(0).integers(0, 256, (24, 24, 3), dtype=np.uint8)
    entry = with_picture(shown, pixels, preparation, [np.linspace(-1, 1, 576).tolist(), None], "a.png")
    provenance = Provenance("explain", "", {"closelook": "0.1"}, models=[("vit", "sha256:1")])
    (site / "picture.html").write_text(explain_page([entry], "Why cat", provenance), encoding="utf-8")
    tab = page("picture.html")
    sizes = "return [...document.querySelectorAll('#sample img')].map((one) => [one.naturalWidth, one.alt])"
    assert tab.script(sizes) == [
        [24, "a.png"],
        [24, ""],
        [24, "relevance by AttnLRP: most in the patch of row 3, column 3, not on evidence"],
        [24, ""],
        [3, "relevance by Rollout: most in the patch of row 3, column 3, not on evidence"],
    ]
    boxes = "return [...document.querySelectorAll('.frame')].map((one) => one.querySelectorAll('rect.evidence').length)"
    assert tab.script(boxes) == [1, 1]
    tab.hover(".frame rect:nth-of-type(4)")
    values = "return [...document.querySelectorAll('#sample .value')].map((one) => one.innerText)"
    assert tab.script(values) == ["3", "2"]
    assert tab.script("return document.querySelectorAll('.frame .chosen').length") == 2
    ramp = "return getComputedStyle(document.querySelector('.of-pictures')).backgroundImage"
    assert tab.script(ramp).count("rgb") == 3
    tab.screenshot(ARTIFACTS / "picture_desk.png")


def test_markup_in_samples_and_tokens_stays_text(page):
    tab = page("samples.html")
    assert "<script>document.title" in tab.script("return document.querySelector('#sample .sentence').innerText")
    assert "<i>" in tab.script("return document.querySelector('#sample .tok').innerText")
    assert tab.script("return document.title").endswith("closelook")
    assert tab.script("return document.querySelectorAll('#sample script, #sample b, #sample i').length") == 0


def test_the_page_may_not_reach_the_network_or_run_foreign_script(page, chromium):
    tab = page()
    tab.script(
        "const made = document.createElement('script'); made.textContent = 'window.broken = 1';"
        "document.body.append(made)"
    )
    assert tab.script("return window.broken") is None
    asked = "return fetch('http://127.0.0.1:9/').then(() => 'reached', () => 'refused')"
    assert tab.script(asked) == "refused"
    refused = chromium.complaints()
    assert refused
    assert all("Content Security Policy" in line or "127.0.0.1:9" in line for line in refused)


def test_the_first_screen_says_which_methods_tests_tell_apart(page):
    tab = page()
    summaries = tab.script(
        "return [...document.querySelectorAll('details.board summary')].map((line) => line.innerText)"
    )
    assert len(summaries) == 4, "two models on two tasks"
    assert all("the evidence" in line for line in summaries)
    assert tab.script("return document.querySelector('.board table').checkVisibility()") is False, "behind a click"
    assert tab.script("return document.querySelector('#glossary + .glossary').innerText").count("\n") > 5
