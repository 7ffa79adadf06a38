"""The page of sources: its table, its figure of error against forwards, and the entries of its explorer."""

import numpy as np
import pytest

from closelook.evaluation.ablations.means import DROPPED, judgement_of
from closelook.evaluation.report.explorers import Explorer, MethodSources
from closelook.evaluation.report.explorers import answer_entry as entry
from closelook.evaluation.report.sections.sources import Judged, error_figures, sources_tables
from closelook.evaluation.scoring.intervals import Resampling
from closelook.evaluation.scoring.metrics import UNITS, shown
from closelook.jobs.methods import METHODS

N = 24
BUDGETS = (32, 64)


def row(sample, lds, explanation="log_prob", ablated=0, screened=False, whole=True):
    """A row of the schema of sources with this LDS, of which everything else follows."""
    numbers = dict.fromkeys(("lds_l", "lds_f"), lds)
    lds = 0.0 if lds is None else lds
    drops = [2.0 + lds] * len(DROPPED) if whole else []
    numbers |= {"infidelity_l": 1 - lds, "infidelity_f": 1 - lds}
    numbers |= {"drop_l": drops, "drop_f": drops, "drop_y": drops}
    evidence = {name: float(whole and lds > 0.5) if whole else None for name in shown(UNITS)}
    key = {"sample_id": sample, "explanation": explanation, "ablated": ablated, "screened": screened}
    return {**key, **numbers, **evidence}


def judged(lacking=(), **facts):
    """A judgement of LRP, ContextCite with two budgets and random relevance; `lacking` samples have no LDS."""
    draw = np.random.default_rng(0)
    rows = {"lrp": [], "contextcite": [], "random": []}
    for at in range(N):
        sample = f"s{at:02d}"

        def lds(mean, at=at):
            return None if at in lacking else mean + 0.05 * draw.normal()

        rows["lrp"] += [row(sample, lds(0.6)), row(sample, lds(0.5), "target")]
        rows["lrp"] += [row(sample, lds(0.7), ablated=k + 1, screened=True, whole=False) for k in (1, 2)]
        budgets = zip(BUDGETS, (0.5, 0.8), strict=True)
        rows["contextcite"] += [row(sample, lds(mean), "none", many, whole=many == 64) for many, mean in budgets]
        rows["random"] += [row(sample, None if at in lacking else 0.0, "none")]
    judgement = judgement_of(("llama", "sources", "remove"), rows, Resampling(200), {})
    forwards = {variant: 2.0 * (variant.method == "lrp") + judgement.prompts[variant] for variant in judgement.prompts}
    return Judged(judgement, forwards, dict.fromkeys(forwards, 0.25), **facts)


def used():
    return {name: METHODS[name] for name in ("lrp", "contextcite", "random")}


def cells(table, label):
    [match] = [entry for entry in table.rows if entry.labels[-1] == label]
    return {f"{column.group} {column.label}": cell for column, cell in zip(table.columns, match.cells, strict=True)}


def test_the_table_tells_every_method_with_its_interval_group_and_cost():
    table, further = sources_tables([judged()], used())
    labels = [entry.labels[-1] for entry in table.rows]
    assert labels[:4] == ["LRP of log p", "LRP of logits", "ContextCite", "Random"]
    lrp, cited = cells(table, "LRP of log p"), cells(table, "ContextCite")
    assert 0.45 < lrp["against log p LDS"].low < lrp["against log p LDS"].value < lrp["against log p LDS"].high < 0.7
    assert cited["against log p LDS"].value == pytest.approx(0.8, abs=0.05), "the largest budget is the method's own"
    assert (cited["against log p LDS"].mark, lrp["against log p LDS"].mark) == ("best", "")
    assert cited["against log p infidelity"].mark == "best", "where lower is better"
    assert lrp["against log p drop 1"].value == pytest.approx(2.6, abs=0.05)
    assert lrp["evidence PG"].value == pytest.approx(100, abs=15)
    assert (cited["cost forwards"].value, lrp["cost forwards"].value) == (64, 2)
    assert lrp["cost ms"].value == 250
    assert {column.group for column in further.columns} == {"against logits", "log-odds"}


def test_the_smallest_difference_has_the_unit_of_its_column():
    [table, _] = sources_tables([judged()], used())
    smallest = cells(table, "Smallest difference told")
    assert 1 < smallest["evidence PG"].value < 100, "percent"


def test_samples_without_lds_are_counted_and_untrained_models_say_so():
    table, _ = sources_tables([judged(lacking={3, 7}, untrained=True)], used())
    assert "2 of 24 of llama (untrained), remove on sources" in table.caption
    assert cells(table, "LRP of log p")["against log p LDS"].n == 22
    assert {entry.labels[0] for entry in table.rows} == {"llama (untrained), remove"}


def test_the_figure_joins_budgets_and_screened_sources_over_the_same_samples():
    [figure] = error_figures([judged(lacking={0})], used(), "random")
    known = [(point.line, point.x, 1 - point.cell.value) for point in figure.points]
    expected = [("ContextCite", 32, 0.5), ("ContextCite", 64, 0.8), ("LRP", 2, 0.6), ("LRP, screened", 4, 0.7)]
    for name, x, lds in expected:
        assert [value for label, at, value in known if (label, at) == (name, x)] == [pytest.approx(lds, abs=0.05)]
    assert all(point.cell.low <= point.cell.high for point in figure.points), "every point has its interval"
    assert not [name for name, *_ in known if "logits" in name]


def test_entries_number_their_methods_and_lists_shorten_answers():
    methods = [MethodSources("LRP", [0.123456, -2.0], [[1, 2], [3, 4]]), MethodSources("ContextCite", [1, 0], ())]
    facts = {"evidence": None, "turns": None, "sample_id": "s", "model": "llama", "task": "sources", "way": "remove"}
    data = entry("One. Two.", [(0, 4), (5, 9)], "x" * 300, [(0, 300)], methods, pair=(0, 7), **facts)
    assert data["rows"][0] == {"label": "LRP", "whole": [0.1235, -2.0], "parts": [[1.0, 2.0], [3.0, 4.0]]}
    assert data["pair"] == [0, 1]
    explorer = Explorer.of("answer", [data])
    assert explorer.count == 1
    assert len(explorer.index.files) == 0
