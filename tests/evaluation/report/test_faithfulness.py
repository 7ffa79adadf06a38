"""Tables and figures of faithfulness, and of evidence against it."""

from dataclasses import replace

import numpy as np
import pytest

from closelook.evaluation.report.results import Results, attnlrp
from closelook.evaluation.report.sections.evidence import EvidencePoints, evidence_figure, evidence_table, ranks_table
from closelook.evaluation.report.sections.faithfulness import (
    CurveSet,
    against_zero,
    areas_table,
    curve_figures,
    overview_table,
)
from closelook.evaluation.report.table import NOISE, SMALLEST_ROW, UNDEFINED
from closelook.evaluation.scoring.faithfulness.areas import areas_of, joint_scores, mean_curves
from closelook.evaluation.scoring.faithfulness.scores import summarise
from closelook.evaluation.scoring.intervals import Resampling
from closelook.evaluation.scoring.metrics import lead
from closelook.evaluation.scoring.statistics import compare
from closelook.evaluation.tasks import TASKS
from closelook.jobs.methods import METHODS
from tests.evaluation.scoring.test_areas import N, table_of

TABLES = {"lrp": table_of(2.0, 0), "random": table_of(0.0, 1), "gradient_x_input": table_of(1.0, 2)}
NAMES = ("lrp", "gradient_x_input", "random")


def drawn_of(task="sva", model="gpt2", tables=TABLES, **changes):
    areas = areas_of(tables, "zero", Resampling(300))
    curves = {method: mean_curves(tables[method], "zero", v, Resampling(300)) for method, v in areas.variants.items()}
    return CurveSet(model, task, "float32", "zero", areas, curves, **changes)


def hits_of(samples):
    """100 where a sample's top token is evidence, else 0, by method and sample; drawn at random."""
    drawn = np.random.default_rng(0).random((len(samples), 3)) < [0.9, 0.1, 0.6]
    return {name: dict(zip(samples, 100.0 * drawn[:, at], strict=True)) for at, name in enumerate(TABLES)}


def held_of(curve_set, results, samples=tuple(f"s{at}" for at in range(N)), tables=TABLES):
    both = joint_scores(hits_of(samples), tables, "zero")
    return EvidencePoints.of(replace(curve_set, joint=both), results, dict.fromkeys(NAMES, 1.0), Resampling(300))


def some_results():
    """Of gpt2 and llama, of which gpt2 is scored on sva."""
    hits = np.random.default_rng(0).random((N, 3, 1)) < [[0.9], [0.6], [0.1]]
    return Results(
        models=("gpt2", "llama"),
        tasks={name: TASKS[name] for name in ("sva", "next_word")},
        methods={name: METHODS[name] for name in NAMES},
        dtypes={("gpt2", "sva"): ("float32",)},
        states={},
        scores={},
        comparisons={("gpt2", "sva", "float32"): compare(hits.astype(float), NAMES, (lead(),), Resampling(300))},
    )


@pytest.fixture
def results():
    return some_results()


def by_method(table, column):
    at = [c.label for c in table.columns].index(column)
    return {row.labels[-1]: row.cells[at] for row in table.rows}


def test_p_values_are_adjusted_for_every_row_of_the_table():
    two = [drawn_of(), drawn_of("next_word")]
    alone, together = against_zero(two[:1]), against_zero(two)
    assert len(together) == 6
    assert together[0, "lrp"] == pytest.approx(min(1, two[0].areas.p_zero["lrp"] * 6))
    assert all(together[0, method] >= alone[0, method] for method in NAMES)


def test_the_papers_numbers_stand_beside_those_of_its_models_alone(results):
    ours = drawn_of("next_word", published="Llama-2-7b-hf")
    assert by_method(areas_table([ours], results), "ΔA")["LRP"].reference == 7.85
    assert by_method(areas_table([ours], results), "A LeRF")["LRP"].reference == 6.43, "the paper's insertion MoRF"
    tuned = drawn_of("next_word", published="Llama-2-7b-hf", bases={"random": "gradcam"})
    assert by_method(areas_table([tuned], results), "ΔA")["Random"].reference == 2.01, "under a name of its own"
    other = drawn_of("next_word", published="gpt2")
    assert by_method(areas_table([other], results), "ΔA")["LRP"].reference is None


def test_the_papers_areas_add_up_as_it_prints_them():
    for (task, model, method, measure), value in attnlrp().items():
        if measure == "delta_area":
            areas = (attnlrp()[task, model, method, f"area_{order}"] for order in ("lerf", "morf"))
            lerf, morf = areas
            assert value == pytest.approx(lerf - morf, abs=0.015)


def test_evidence_and_faithfulness_are_of_the_same_samples_and_random_is_not_ranked(results):
    some = tuple(f"s{at}" for at in range(0, N, 3))
    held = held_of(drawn_of(), results, some)
    assert [point.method for point in held.points] == list(NAMES)
    means = []
    for name in ("lrp", "gradient_x_input"):
        area = {(row["sample_id"], row["order"]): row["area"] for row in TABLES[name].to_pylist()}
        delta = np.mean([area[sample, "lerf"] - area[sample, "morf"] for sample in some])
        point = held.points[NAMES.index(name)]
        assert point.delta.value == pytest.approx(delta)
        assert point.evidence.value == pytest.approx(np.mean([hits_of(some)[name][sample] for sample in some]))
        assert point.evidence.n == point.delta.n == len(some)
        means.append((point.evidence.value, delta))
    assert held.agreement.value == pytest.approx(np.sign((means[0][0] - means[1][0]) * (means[0][1] - means[1][1])))
    assert (held.agreement.methods, held.agreement.n) == (2, len(some))
    assert held.agreement.low <= held.agreement.value <= held.agreement.high
    table = evidence_table([held], results)
    assert by_method(table, "PG")["LRP"].value == held.points[0].evidence.value
    cells = ranks_table([held]).rows[0].cells
    assert (cells[0].value, cells[1].value, cells[2].value) == (held.agreement.value, 2, len(some))


def test_without_evidence_nothing_is_held_against_it(results):
    assert EvidencePoints.of(drawn_of("next_word"), results, {}, Resampling(300)) is None
    assert held_of(drawn_of(), results, samples=("other",)) is None


def test_figures_have_a_panel_for_each_model_and_order(results):
    drawn = [drawn_of(), drawn_of(model="llama"), drawn_of("next_word")]
    first, second = curve_figures(drawn, results)
    assert (first.name, second.name) == ("faithfulness_sva_zero", "faithfulness_next_word_zero")
    for text in ("gpt2 · most relevant first", "llama · difference", "Gradient×Input"):
        assert text in first.svg
    assert f"{N} samples" in first.caption
    [map_of_methods] = evidence_figure([held_of(drawn[0], results)], results)
    assert "gpt2 · sva · ρ = 1.00" in map_of_methods.svg
    assert evidence_figure([], results) == []


def test_overlap_stands_beside_the_area_where_a_task_has_evidence_and_nothing_elsewhere(results):
    overlap = {"lrp": summarise(np.array([0.5, 1.0, 0.75]), Resampling(100))}
    published = {"published": "flan-t5-xl"}
    drawn = [drawn_of("sva", overlap=overlap), drawn_of("next_word"), drawn_of("qa", overlap=overlap, **published)]
    table = overview_table(drawn, replace(results, tasks={name: TASKS[name] for name in ("sva", "next_word", "qa")}))
    [lrp] = [row for row in table.rows if row.labels == ("LRP",)]
    groups = ["sva · gpt2", "next_word · gpt2", "qa · gpt2"]
    at = {(c.group.split(",")[0], c.label): cell for c, cell in zip(table.columns, lrp.cells, strict=True)}
    assert [at[group, "IoU"].value for group in groups] == [0.75, None, 0.75]
    assert at[groups[1], "IoU"].state == UNDEFINED
    assert "next_word: no evidence, hence no IoU." in table.caption
    assert at["sva · gpt2", "IoU"].low == overlap["lrp"].low
    assert at["sva · gpt2", "IoU"].reference is None, "the paper has no such task"
    assert at["qa · gpt2", "IoU"].reference == 0.83, "as table 1 prints it"


def test_models_of_the_paper_that_a_run_lacks_stand_in_columns_of_their_own(results):
    def columns(**changes):
        table = overview_table([drawn_of("next_word", **changes)], results)
        [lrp] = [row for row in table.rows if row.labels == ("LRP",)]
        return {(c.group, c.label): cell.value for c, cell in zip(table.columns, lrp.cells, strict=True)}

    ours = columns()
    assert ours["AttnLRP: next_word · Llama-2-7b-hf", "ΔA"] == 7.85
    assert ours["AttnLRP: qa · flan-t5-xl", "IoU"] == 0.83
    assert ("AttnLRP: imdb · Llama-2-7b-hf", "IoU") not in ours, "the paper has none"
    assert ("AttnLRP: next_word · Llama-2-7b-hf", "ΔA") not in columns(published="Llama-2-7b-hf")


def test_inverted_relevance_swaps_the_orders_and_is_neither_ranked_nor_tested(results):
    best = drawn_of(tables={**TABLES, "gradient_x_input": table_of(-9.0, 2)})
    table = areas_table([best], results)
    labels = [row.labels[1] for row in table.rows]
    assert labels == ["LRP", "Gradient×Input", "Gradient×Input, inverted", "Random", SMALLEST_ROW]
    plain, inverted = (
        {column.label: cell for column, cell in zip(table.columns, row.cells, strict=True)} for row in table.rows[1:3]
    )
    assert inverted["ΔA"].value == -plain["ΔA"].value > by_method(table, "ΔA")["LRP"].value
    assert (inverted["ΔA"].low, inverted["ΔA"].high) == (-plain["ΔA"].high, -plain["ΔA"].low)
    assert (inverted["A MoRF"].value, inverted["A LeRF"].value) == (plain["A LeRF"].value, plain["A MoRF"].value)
    assert inverted["ΔA"].p == plain["ΔA"].p, "it is the same test"
    assert not inverted["ΔA"].mark
    assert by_method(table, "ΔA")["LRP"].mark == "best"
    assert len(against_zero([best])) == 3
    assert "sign reversed" in table.caption
    assert "sign reversed" not in areas_table([drawn_of(tables={"lrp": TABLES["lrp"]})], results).caption


def test_rounding_is_marked_and_left_out_of_rankings_and_tests(results):
    kept = {name: table for name, table in TABLES.items() if name != "gradient_x_input"}
    curve_set = drawn_of(
        tables=kept, noise={"gradient_x_input": NOISE}, overlap={"lrp": summarise(np.ones(3), Resampling(100))}
    )
    held = held_of(curve_set, results, tables={**kept, "gradient_x_input": kept["lrp"].slice(0, 0)})
    assert all(point.method != "gradient_x_input" for point in held.points)
    assert set(against_zero([curve_set])) == {(0, "lrp"), (0, "random")}
    table = areas_table([curve_set], results)
    assert by_method(table, "ΔA")["Gradient×Input"].state == NOISE
    assert "Gradient×Input, inverted" not in by_method(table, "ΔA")
    assert "noise: on most samples, no token has more than 0.001 % of the logit" in table.caption
    [cells] = [row.cells for row in overview_table([curve_set], results).rows if row.labels == ("Gradient×Input",)]
    assert [cell.state for cell in cells[:2]] == [NOISE, NOISE]
    [figure] = curve_figures([curve_set], results)
    assert "Gradient×Input" not in figure.svg
    assert "noise" not in areas_table([drawn_of()], results).caption
