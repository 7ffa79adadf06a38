"""`closelook compare --html`: every sample of both runs on one page, as either explains it."""

from dataclasses import replace
from pathlib import Path

import pytest

from jobs.commands.roots import compare_page
from jobs.results import load
from jobs.stages.report import provenance
from jobs.versions import versions
from tests.browser.driver import browser
from tests.jobs.inline import without_ray
from tests.leaves import first_leaf, island

HERE, THERE = "gpt2 in one", "gpt2 in other"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """With runs `one` and `other` of two models under one name, the second of fewer samples."""
    from jobs.config import RunConfig
    from jobs.config.kept import keeping
    from jobs.stages.run import run
    from jobs.store import Store

    folder = tmp_path_factory.mktemp("runs")
    settings = ["methods=[attnlrp, random]", "report.samples=3"]
    with without_ray():
        for root, model, limit in (("one", "demo/gpt2", 5), ("other", "demo/llama", 4)):
            changed = [f"models.gpt2.id={model}", f"tasks.sva.limit={limit}"]
            config = RunConfig.load("smoke", str(folder / root), settings + changed)
            store = Store(config.root)
            store.create()
            with keeping(config, store):
                assert all(summary.complete for summary in run(config, store))
    return folder


@pytest.fixture
def page(folder, closelook, monkeypatch) -> Path:
    monkeypatch.chdir(folder)
    code, out, err = closelook("compare", "one", "other", "--html", "two.html")
    assert code == 0, err
    assert out.endswith("written to two.html\n")
    return folder / "two.html"


def relevance(root: Path, sample: str) -> dict[str, list[float]]:
    """The stored relevance of a sample by AttnLRP with full embeddings, by explanation."""
    rows = load(str(root)).relevance("arrow", tokens=False, method="attnlrp").to_pylist()
    return {r["explanation"]: r["relevance"] for r in rows if (r["sample_id"], r["embedding"]) == (sample, "full")}


def test_every_sample_of_both_runs_stands_there_as_either_explains_it(page, folder):
    html = page.read_text()
    entries = first_leaf(html, "samples")
    assert island(html, "sample-choices")["pairs"] == {HERE: THERE, THERE: HERE}
    assert [entry["model"] for entry in entries] == [HERE, THERE] * 3
    for first, second in zip(entries[::2], entries[1::2], strict=True):
        assert first["sample_id"] == second["sample_id"]
        for entry, root in ((first, "one"), (second, "other")):
            shown = {row["explanation"]: row["values"] for row in entry["rows"] if row["label"] == "AttnLRP"}
            stored = relevance(folder / root, entry["sample_id"])
            assert shown == {name: pytest.approx(values, rel=1e-3) for name, values in stored.items()}
        assert first["rows"] != second["rows"]


def test_the_page_says_what_differs_and_needs_no_other_file(page):
    html = page.read_text()
    assert "models.gpt2.id: &#34;demo/gpt2&#34; -&gt; &#34;demo/llama&#34;" in html
    assert "tasks.sva.limit: 5 -&gt; 4" in html
    assert html.count("<tr data-task=") == 2, "a place a method"
    assert "script-src 'sha256-" in html
    assert "frame-src" not in html


def test_versions_of_both_runs_stand_on_the_page_where_they_differ(page, closelook, monkeypatch):
    def older(run):
        made_by = provenance(run)
        is_other = run.config.root.endswith("other")
        return replace(made_by, versions={**made_by.versions, "torch": "1.0"}) if is_other else made_by

    monkeypatch.setattr(compare_page, "provenance", older)
    code, _, err = closelook("compare", "one", "other", "--html", "versions.html")
    assert code == 0, err
    html = page.with_name("versions.html").read_text()
    assert f"<dt>torch</dt><dd>{versions()['torch']} against 1.0</dd>" in html
    assert f"<dt>numpy</dt><dd>{versions()['numpy']}</dd>" in html


def test_what_a_run_lacks_is_said_on_the_page(page, closelook, monkeypatch):
    from jobs.plan import models
    from jobs.plan.checkpoints import ModelUnavailable

    def away(config, seed=0):
        raise ModelUnavailable(f"model {config.name} is out of reach")

    real = models.resolve
    monkeypatch.setattr(
        "jobs.plan.cells.resolve", lambda c, *a, **k: (away if c.id == "demo/llama" else real)(c, *a, **k)
    )
    code, _, err = closelook("compare", "one", "other", "--html", "lacking.html")
    assert code == 0, err
    html = page.with_name("lacking.html").read_text()
    assert "<li>other: model gpt2 is out of reach</li>" in html
    assert "<li>one: model" not in html


def test_a_run_is_not_put_beside_itself(page, closelook):
    code, _, err = closelook("compare", "one", "./one", "--html", "same.html")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "one and ./one are the same run" in err
    assert not page.with_name("same.html").exists()


def test_a_run_that_keeps_no_configuration_has_no_samples_to_show(page, closelook):
    kept = page.with_name("other") / "config.yaml"
    text = kept.read_text()
    kept.unlink()
    code, _, err = closelook("compare", "one", "other", "--html", "none.html")
    kept.write_text(text)
    assert (code, len(err.splitlines())) == (2, 1)
    assert "other has no config.yaml: run `closelook run --root " in err
    assert err.endswith("other --config CONFIG` with the config it was made with, or leave out --html\n")


@pytest.mark.browser
def test_the_other_run_is_shown_beside_each_sample_unasked(chromium_programs, page):
    models = (
        "return [...document.querySelectorAll('#sample .sample-facts')].map(e => e.innerText.match(/model (.*)/)[1])"
    )
    with browser(*chromium_programs) as tab:
        tab.open(page.as_uri())
        assert tab.script(models) == [HERE, THERE]
        tab.press("j")
        assert tab.script(models) == [THERE, HERE]
        assert "of=gpt2+in+other" in tab.script("return location.hash")
        assert tab.complaints() == []
