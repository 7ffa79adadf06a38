"""Tables and figures of faithfulness, and of evidence against it."""

from dataclasses import replace

import numpy as np
import pytest

from evaluation.report.faithfulness import (
    Drawn,
    against_zero,
    agreement,
    areas_table,
    attnlrp,
    evidence_table,
    overview_table,
    pairs_table,
    points,
)
from evaluation.report.faithfulness_figures import curve_figures, evidence_figure
from evaluation.report.render import markdown
from evaluation.report.results import Results
from evaluation.report.table import MISSING
from evaluation.scoring.areas import areas_of, mean_curves
from evaluation.scoring.metrics import lead
from evaluation.scoring.statistics import compare
from evaluation.tasks import TASKS
from jobs.methods import METHODS
from tests.evaluation.scoring.test_areas import N, table_of

TABLES = {"lrp": table_of(2.0, 0), "random": table_of(0.0, 1), "gradient_x_input": table_of(1.0, 2)}
NAMES = ("lrp", "gradient_x_input", "random")


def drawn_of(task="sva", model="gpt2", tables=TABLES, **changes):
    areas = areas_of(tables, "zero", 300, 0)
    curves = {method: mean_curves(tables[method], "zero", v, 300, 0) for method, v in areas.variants.items()}
    return Drawn(model, task, "float32", "zero", areas, curves, **changes)


@pytest.fixture
def results():
    hits = np.random.default_rng(0).random((N, 3, 1)) < [[0.9], [0.6], [0.1]]
    return Results(
        models=("gpt2", "llama"),
        tasks={name: TASKS[name] for name in ("sva", "next_word")},
        methods={name: METHODS[name] for name in NAMES},
        dtypes={("gpt2", "sva"): ("float32",)},
        states={},
        scores={},
        comparisons={("gpt2", "sva", "float32"): compare(hits.astype(float), NAMES, (lead(),), 300, 0)},
    )


def by_method(table, column):
    at = [c.label for c in table.columns].index(column)
    return {row.labels[-1]: row.cells[at] for row in table.rows}


def test_areas_stand_with_their_intervals_and_their_difference_from_random(results):
    one = drawn_of()
    table = areas_table([one], results)
    assert [row.labels[1] for row in table.rows] == ["LRP", "Gradient×Input", "Random"]
    found = by_method(table, "ΔA")
    for label, method in (("LRP", "lrp"), ("Random", "random")):
        summary = one.areas.summaries[method, "delta_area"]
        cell = found[label]
        assert (cell.value, cell.low, cell.high, cell.n) == (summary.value, summary.low, summary.high, N)
    assert found["LRP"].mark == "best"
    assert found["LRP"].p < 0.05 < found["Random"].p
    over = by_method(table, "ΔA over random")
    assert over["LRP"].value == pytest.approx(found["LRP"].value - found["Random"].value)
    assert over["LRP"].p < 0.05
    assert over["Random"].value is None


def test_p_values_are_adjusted_for_every_row_of_the_table():
    two = [drawn_of(), drawn_of("next_word")]
    alone, together = against_zero(two[:1]), against_zero(two)
    assert len(together) == 6
    assert together[0, "lrp"] == pytest.approx(min(1, two[0].areas.p_zero["lrp"] * 6))
    assert all(together[0, method] >= alone[0, method] for method in NAMES)


def test_left_out_samples_are_counted_and_sets_that_are_not_drawn_are_missing(results):
    one = drawn_of(tables={**TABLES, "random": table_of(0.0, 1, lost=(2, 5))}, lacking=["gradient_x_input"])
    one = replace(one, areas=areas_of({"lrp": TABLES["lrp"], "random": one_of_lost()}, "zero", 300, 0))
    table = areas_table([one], results)
    assert by_method(table, "left out")["Random"].value == 2
    assert by_method(table, "ΔA")["Gradient×Input"].state == MISSING
    assert "missing" in markdown(overview_table([one], results))


def one_of_lost():
    return table_of(0.0, 1, lost=(2, 5))


def test_the_papers_numbers_stand_beside_those_of_its_models_alone(results):
    ours = drawn_of("next_word", published="Llama-2-7b-hf")
    assert by_method(areas_table([ours], results), "ΔA")["LRP"].reference == 7.85
    assert by_method(areas_table([ours], results), "A LeRF")["LRP"].reference == 6.43, "the paper's insertion MoRF"
    other = drawn_of("next_word", published="gpt2")
    assert by_method(areas_table([other], results), "ΔA")["LRP"].reference is None
    assert "In parentheses: the number of AttnLRP" in markdown(areas_table([ours], results), close_look=True)


def test_the_papers_areas_add_up_as_it_prints_them():
    for (task, model, method, measure), value in attnlrp().items():
        if measure == "delta_area":
            areas = (attnlrp()[task, model, method, f"area_{order}"] for order in ("lerf", "morf"))
            lerf, morf = areas
            assert value == pytest.approx(lerf - morf, abs=0.015)


def test_every_pair_of_methods_is_tested(results):
    table = pairs_table([drawn_of()], results)
    labels = [column.label for column in table.columns]
    cells = {(row.labels[1], label): row.cells[at] for row in table.rows for at, label in enumerate(labels)}
    assert len(cells) == 9
    assert cells["LRP", "Random"].p == cells["Random", "LRP"].p < 0.05
    assert cells["LRP", "Random"].value == -cells["Random", "LRP"].value


def test_methods_with_both_sides_are_points_and_their_rankings_are_compared(results):
    one = drawn_of()
    found = points(one, results, {"lrp": 2.0, "random": 1.0, "gradient_x_input": 2.0})
    assert [point.method for point in found] == list(NAMES)
    assert agreement(found) == pytest.approx(1.0)
    assert points(drawn_of("next_word"), results, {}) == [], "a task without evidence"
    table = evidence_table([one], [found], results)
    assert by_method(table, "forwards")["LRP"].value == 2.0
    assert by_method(table, "PG")["LRP"].value == found[0].evidence.value


def test_figures_have_a_panel_for_each_model_and_order(results):
    drawn = [drawn_of(), drawn_of(model="llama"), drawn_of("next_word")]
    first, second = curve_figures(drawn, results)
    assert (first.name, second.name) == ("faithfulness_sva_zero", "faithfulness_next_word_zero")
    for text in ("gpt2 · most relevant first", "llama · difference", "Gradient×Input"):
        assert text in first.svg
    assert f"{N} samples" in first.caption
    found = [points(one, results, dict.fromkeys(NAMES, 1.0)) for one in drawn]
    [map_of_methods] = evidence_figure(drawn, found, results)
    assert "gpt2 · sva · ρ = 1.00" in map_of_methods.svg
    assert "llama" not in map_of_methods.svg
    assert evidence_figure(drawn, [[], [], []], results) == []
