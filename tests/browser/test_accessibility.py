"""Accessibility: axe-core finds nothing on any page in Chromium; few stops of the tab key; nothing clipped on paper.

Colours follow the scheme and layout follows the width, neither follows both: two looks have all of them.
"""

import base64
import re

import numpy as np
import pytest

from closelook.evaluation.report.explorers import neuron_entry as neuron
from closelook.evaluation.report.explorers import neuron_explorer
from closelook.evaluation.report.heatmaps.tokens import EVERY_LABEL, Line, data
from closelook.evaluation.report.page import Part, Provenance, Site, explain_page
from closelook.evaluation.report.sections.evidence import evidence_figure, evidence_table, ranks_table
from closelook.evaluation.report.sections.faithfulness import areas_table, curve_figures, overview_table
from closelook.evaluation.report.sections.neurons import Ablations, ablation_figure, ablation_table
from closelook.evaluation.scoring.intervals import Resampling
from tests.browser.axe import emulate, violations
from tests.browser.driver import WIDTHS, call, write_page
from tests.evaluation.report.test_faithfulness import NAMES, drawn_of, held_of, some_results
from tests.jobs.conftest import blank_figures  # noqa: F401  # axe does not look into pictures

pytestmark = pytest.mark.browser
LOOKS = [("light", "desk"), ("dark", "phone")]
REPORT = ("index.html", "tables.html", "controls.html", "curves.html", "samples.html")  # of the made-up one
FACTS = Provenance("filled", "name: filled", {"closelook": "1"}, [("sva", "abc")], [("gpt2", "sha256:1")])


def samples(*models):
    """The explorer of a sample under each model, with every way of relevance that a line can tell."""
    lines = [Line("AttnLRP", [0.1, 2.0, -1.0], "target"), Line("LRP", [0.5, 0.2, 0.1], decoder=[0.25, 1.0])]
    lines += [Line("LRP", [-1.0, 3.0, 0.0], EVERY_LABEL, of="bad")]
    tokens, evidence, special = ["[CLS]", " keys", " to"], [False, True, False], [True, False, False]
    facts = {"sample_id": "s1", "task": "sva", "target": "are", "foil": "is", "text": "The keys to", "slot": 11}
    return [
        data(tokens, lines, evidence, special, decoder=["‹start›", " are"], model=model, **facts) for model in models
    ]


def faithfulness():
    """Both parts of that page, as a run with curves has them."""
    results, drawn = some_results(), [drawn_of(), drawn_of("next_word")]
    held = [held_of(drawn[0], results)]
    made = [overview_table(drawn, results), areas_table(drawn, results)]
    title, tables = "Evidence beside faithfulness", [evidence_table(held, results)]
    tables += [ranks_table(held)]
    figures = evidence_figure(held, results)
    page = "faithfulness.html"
    yield Part("Faithfulness", page, curve_figures(drawn, results), made[:1], details=made[1:])
    yield Part(title, page, figures, tables, note="1 set of curves is not computed: run `closelook perturb`.")


def knocked_out():
    rng = np.random.default_rng(0)
    logits = {name: {f"s{at}": 3 - np.cumsum(rng.random(3)) for at in range(9)} for name in NAMES}
    lost = [Ablations.of("gpt2", "sva", (1, 5), logits)]
    methods = some_results().methods
    figures = ablation_figure(lost, methods, Resampling(50))
    tables = [ablation_table(lost, methods, Resampling(50))]
    return Part("Neuron ablation", "neurons.html", figures, tables)


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """Pages of what the made-up report lacks: curves, neurons, an explained sentence, two runs."""
    root = tmp_path_factory.mktemp("filled")
    entries = [neuron("gpt2", 0, at, [(0, 1.0 - at, 3)], corpus="stories") for at in range(4)]
    explorers = {"neurons.html": neuron_explorer(entries, ["sva · LRP"])}
    site = Site(FACTS, some_results(), [], [*faithfulness(), knocked_out()], explorers)
    for name in ("faithfulness.html", "neurons.html"):
        write_page(root, site, name)
    for figure in (figure for part in site.parts for figure in part.figures):
        for name, text in figure.files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    (root / "explain.html").write_text(explain_page(samples("gpt2"), "Why are rather than is", FACTS), encoding="utf-8")
    return root


@pytest.fixture
def looked_at(chromium):
    """Opens a page in one of the looks."""

    def open_page(path, scheme, width):
        chromium.resize(*WIDTHS[width])
        emulate(chromium, features=[{"name": "prefers-color-scheme", "value": scheme}])
        chromium.open(path.as_uri())
        return chromium

    yield open_page
    emulate(chromium, features=[])


@pytest.mark.thinned(4)
@pytest.mark.parametrize(("scheme", "width"), LOOKS)
@pytest.mark.parametrize("name", REPORT)
def test_axe_finds_nothing_on_the_pages_of_a_report(looked_at, site, name, scheme, width):
    assert violations(looked_at(site / name, scheme, width)) == []


@pytest.mark.thinned(4)
@pytest.mark.parametrize(("scheme", "width"), LOOKS)
@pytest.mark.parametrize("name", ["faithfulness.html", "neurons.html", "explain.html"])
def test_axe_finds_nothing_on_pages_that_are_full(looked_at, filled, name, scheme, width):
    assert violations(looked_at(filled / name, scheme, width)) == []


def test_axe_finds_what_is_wrong(looked_at, filled):
    """Faint text in a table's shadows, a control without a name, a target too small: each by its rule."""
    tab = looked_at(filled / "faithfulness.html", "light", "desk")
    tab.script(
        "const cell = document.querySelector('.scroll tbody td'); cell.style.color = '#ccc'; cell.textContent = '1.0';"
        "document.querySelector('main').append(document.createElement('input'));"
        "for (const name of ['a', 'b']) {"
        "  const small = document.createElement('button'); small.textContent = name;"
        "  small.style.cssText = 'all: unset; display: inline-block; width: 8px; height: 8px; font-size: 6px';"
        "  document.querySelector('main').append(small) }"
    )
    rules = {line.split(":")[0] for line in violations(tab)}
    assert rules >= {"serious color-contrast", "critical label", "serious target-size"}


@pytest.mark.parametrize("name", ["index.html", "tables.html", "samples.html"])
def test_a_page_has_few_stops_of_the_tab_key(page, name):
    tab = page(name)
    stops = "return [...document.querySelectorAll('a[href], button, input, select, summary, [tabindex]')]"
    stops += ".filter((e) => e.tabIndex >= 0 && e.checkVisibility()).length"
    assert tab.script(stops) < 100


def test_on_paper_no_table_is_clipped(page):
    tab = page("tables.html")
    tab.resize(1040, 720)  # A4 across, less its margins
    emulate(tab, media="print")
    try:
        clipped = tab.script(
            "return [...document.querySelectorAll('.scroll')].filter((box) => box.checkVisibility())"
            ".filter((box) => box.scrollWidth > box.clientWidth + 1).map((box) => [box.ariaLabel, box.scrollWidth])"
        )
    finally:
        emulate(tab, media="")
    assert clipped == []


def test_the_overview_prints_on_two_sheets(page):
    tab = page("index.html")
    asked = {"cmd": "Page.printToPDF", "params": {"preferCSSPageSize": True}}
    printed = base64.b64decode(call("POST", f"{tab._url}/goog/cdp/execute", asked)["data"])
    assert 1 <= len(re.findall(rb"/Type\s*/Page[^s]", printed)) <= 2


def test_what_is_touched_on_a_phone_is_large_enough(page):
    tab = page("samples.html")
    tab.resize(*WIDTHS["phone"])
    small = tab.script(
        "return [...document.querySelectorAll('a[href], button, select, summary')].filter((e) => e.checkVisibility())"
        ".filter((e) => e.getBoundingClientRect().height < 24).map((e) => e.outerHTML.slice(0, 90))"
    )
    assert small == []
