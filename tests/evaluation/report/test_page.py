"""Pages need nothing but themselves, and no string of a sample, a model or a config becomes markup or script."""

import base64
import hashlib
import re

import pytest

from closelook.evaluation.report.explorers import sample_explorer
from closelook.evaluation.report.frame import Point
from closelook.evaluation.report.heatmaps import tokens as heatmap
from closelook.evaluation.report.page import PAGES, Figure, Part, Provenance, Site, explain_page
from closelook.evaluation.report.sections.tables import score_tables
from closelook.evaluation.report.table import Cell, Column, Row, Table
from tests.evaluation.report.test_tables import some_results
from tests.shown import rows_in

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)> & \u2028 \"'"


def provenance(config="name: test\n"):
    return Provenance("test", config, {"closelook": "0.1"}, [("sva", "abc")], [("gpt2", "sha256:1")])


def entry(text="The keys are", **facts):
    line = heatmap.Line("AttnLRP", [1.0, -1.0], "contrastive")
    return heatmap.data(
        [text, " b"], [line], [True, False], text=text, sample_id="s1", task="sva", model="gpt2", **facts
    )


def site(results=None, **more):
    results = results or some_results()
    parts = more.pop("parts", [Part(page, page, note="A note.") for page in PAGES])
    explorers = {"samples.html": sample_explorer([entry()])}
    return Site(provenance(), results, score_tables(results), parts, explorers, **more)


def scripts(page):
    return re.findall(r"<script(?P<kind>[^>]*)>(.*?)</script>", page, flags=re.S)


@pytest.fixture(scope="module")
def files():
    return site().files()


@pytest.mark.parametrize("name", PAGES)
def test_pages_refer_to_nothing_outside_the_site_name_their_origin_and_run_only_their_own_script(files, name):
    page = files[name]
    targets = re.findall(r"""(?:src|href)=["']?([^"'\s>]+)""", page)
    inside = r"data:|#|numbers\.csv$|(index|tables|faithfulness|sources|controls|curves|neurons|samples)\.html$"
    assert all(re.match(inside, target) for target in targets)
    assert not re.search(r"https?://|@import|url\(", page)
    for fact in (provenance().config_hash, "name: test", "sha256:1", "abc", "closelook 0.1"):
        assert fact in page
    programs = [text for kind, text in scripts(page) if "json" not in kind]
    assert len(programs) == 1
    digest = base64.b64encode(hashlib.sha256(programs[0].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page
    assert "default-src 'none'" in page
    assert not re.search(r"\son[a-z]+=", page.replace(programs[0], ""))


def test_a_first_page_without_a_comparison_says_why():
    page = site().files()["index.html"]
    assert "Which method to use here" not in page
    assert '<h2 id="left-out">' in page
    assert "no methods are compared" in page


def test_hostile_strings_stay_text_everywhere():
    results = some_results(models=(HOSTILE,))
    made = Site(
        Provenance(HOSTILE, HOSTILE, {"closelook": HOSTILE}, [(HOSTILE, HOSTILE)], [(HOSTILE, HOSTILE)]),
        results,
        score_tables(results),
        [Part(HOSTILE, "curves.html", note=HOSTILE)],
        {"samples.html": sample_explorer([entry(HOSTILE, target=HOSTILE, foil=HOSTILE)])},
        HOSTILE,
        [HOSTILE],
    )
    for name, page in made.files().items():
        if name.endswith(".html"):
            assert "<script>alert" not in page
            assert "<img src=x" not in page
            assert len(scripts(page)) == (4 if name == "samples.html" else 1)


def test_pages_without_content_are_neither_written_nor_linked():
    files = site(parts=[Part("Head pruning", "curves.html"), Part("P", "neurons.html", note="None.")]).files()
    pages = {name for name in files if name.endswith(".html")}
    assert pages == {"index.html", "tables.html", "neurons.html", "samples.html"}
    assert set(re.findall(r'<a href="(\w+\.html)"', files["index.html"])) == pages


def test_missing_cells_are_marked_on_the_page():
    results = some_results()
    states = {cell: "partial" if cell.method == "lrp" else state for cell, state in results.states.items()}
    page = site(type(results)(**(vars(results) | {"states": states}))).files()["index.html"]
    assert '<span class="state">partial</span>' in page


def test_the_papers_numbers_can_be_shown_only_where_there_are_any():
    assert " disabled>" in site().files()["index.html"]
    page = site(some_results(published={("gpt2", "sva"): "gpt2"})).files()["index.html"]
    assert " disabled>" not in page
    assert re.search(r'<small class="paper"[^>]*>39 \(\+21\.0\)</small>', page)


@pytest.mark.parametrize("field", ["tables", "details"])
@pytest.mark.parametrize("reference", [None, 2.0])
def test_the_papers_numbers_beside_areas_can_be_shown_where_there_are_any(reference, field):
    made = Table("t", "T", "", ("m",), (Column("", "c"),), (Row("", ("a",), (Cell(1.0, reference=reference),)),))
    part = Part("P", "faithfulness.html", **{field: [made]})
    page = site(parts=[part]).files()["faithfulness.html"]
    assert ('class="show-paper"' in page) == ('class="paper"' in page) == (reference is not None)


def test_explained_sentence_is_a_page_of_its_own():
    page = explain_page([entry(HOSTILE)], HOSTILE, provenance())
    assert "<script>alert" not in page
    assert len(scripts(page)) == 4


def test_every_number_of_a_table_is_a_row_of_the_frame_with_its_id_and_its_labels():
    cells = (Cell(1.25, n=8, low=1.0, high=1.5, p=0.001, mark="best", reference=2.0), Cell(state="missing"))
    made = Table(
        "t", "T", "", ("model",), (Column("G", "PG", unit=" %"), Column("G", "PG", "Δ")), (Row("sva", ("a|b",), cells),)
    )
    point = Point("panel", "AttnLRP", 0.5, Cell(2.0, low=1.0, high=3.0))
    part = Part("P", "curves.html", [Figure("f", "F", "", "<svg/>", 1, [point])], [made])
    rows = {row["id"]: row for row in rows_in(site(parts=[part]).files()["numbers.csv"])}
    row = {name: value for name, value in rows["t/sva/a|b/G/PG/"].items() if value}
    numbers = {"value": "1.25", "n": "8", "low": "1.0", "high": "1.5", "p": "0.001", "reference": "2.0"}
    labels = {"id": "t/sva/a|b/G/PG/", "table": "t", "task": "sva", "model": "a|b", "group": "G", "label": "PG"}
    assert row == labels | numbers | {"unit": " %", "state": "done", "mark": "best"}
    assert (rows["t/sva/a|b/G/PG/Δ"]["value"], rows["t/sva/a|b/G/PG/Δ"]["state"]) == ("", "missing")
    of_figure = rows["figures/f/panel/AttnLRP/0.5"]
    assert [of_figure[name] for name in ("panel", "line", "x", "value", "low", "high")] == [
        "panel",
        "AttnLRP",
        "0.5",
        "2.0",
        "1.0",
        "3.0",
    ]
    assert {row["table"] for row in rows.values()} >= {"table1", "table1_random", "table2", "table9"}


def test_a_cell_shows_its_number_with_stars_interval_and_what_the_papers_have():
    cell = Cell(-1.26, n=8, low=-2.04, high=0.5, p=0.001, mark="best", reference=2.0)
    columns = (Column("", "a"), Column("", "b", signed=True), Column("", "c", digits=2, unit="×"))
    made = Table("t", "T", "", ("model",), columns, (Row("", ("m",), (cell, cell, Cell(1.5))),))
    page = site(parts=[Part("P", "curves.html", tables=[made])]).files()["curves.html"]
    shown = [
        re.sub(r"<[^>]+>", " ", text).split() for text in re.findall(r"<td.*?</td>", page.partition('<table id="t"')[2])
    ]
    plain = ["−1.3", "**", "−2.0", "to", "0.5", "2", "(−3.3)"]
    assert shown[-3:] == [plain, ["−1.3", "**", "2", "(−3.3)"], ["1.50×"]]
    assert 'title="95 % interval −2.0 to +0.5, 8 samples, p = 0.001"' in page
