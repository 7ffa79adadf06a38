"""Tables show what the store holds: defaults, pairs, what is missing, and the paper's numbers where they belong."""

from dataclasses import replace

import numpy as np
import pytest

from closelook.evaluation.report.results import CellKey, Results, Score, Variant, close_look
from closelook.evaluation.report.sections.tables import score_tables
from closelook.evaluation.report.table import Cell, marked_if_best
from closelook.evaluation.scoring.intervals import Resampling
from closelook.evaluation.scoring.metrics import METRICS
from closelook.evaluation.scoring.statistics import compare
from closelook.evaluation.tasks import TASKS, Task
from closelook.jobs.methods import METHODS
from tests.shown import in_words, lines_of

VALUES = {"attnlrp": 60.0, "lrp": 50.0, "gradient_l2": 40.0, "random": 20.0, "alti": 30.0}
LINEAR, PLAIN = [("contrastive", "full"), ("target", "full"), ("contrastive", "partial")], [("none", "none")]


def some_results(models=("gpt2",), dtypes=("float32",), missing=(), methods=("attnlrp", "lrp", "random"), **more):
    """Scores that tell every variant apart by its decimals."""
    states, scores = {}, {}
    for model in models:
        for task in ("sva", "qa"):
            for dtype in dtypes:
                for method in methods:
                    cell = CellKey(model, task, dtype, method)
                    states[cell] = "missing" if cell in missing else "done"
                    if cell not in missing:
                        scores |= dict(scores_of(cell, VALUES[method]))
    dtypes_of = {(model, task): dtypes for model in models for task in ("sva", "qa")}
    tasks = {name: TASKS[name] for name in ("sva", "qa")}
    return Results(tuple(models), tasks, records(*methods), dtypes_of, states, scores, **more)


def scores_of(cell, value):
    for explanation, embedding in LINEAR if cell.method in ("attnlrp", "lrp") else PLAIN:
        for tokens in ("non_special", "all"):
            for scope in ("context", "full") if cell.task == "qa" else ("full",):
                shift = 0.1 * (explanation == "target") + 0.2 * (embedding == "partial") + 0.3 * (tokens == "all")
                shift += 0.4 * (cell.task == "qa" and scope == "full") + 0.5 * (cell.dtype == "float64")
                for metric in METRICS:
                    yield (cell, Variant(explanation, embedding, tokens, scope), metric), Score(value - shift, 10)
    yield (cell, Variant("none", "none", "all", "full"), "accuracy"), Score(97.0, 12)


def records(*names):
    return {name: METHODS[name] for name in names}


def test_scores_of_rounding_noise_are_not_printed():
    results = some_results(methods=("lrp", "gradient_l2", "random"))
    cell = CellKey("gpt2", "sva", "float32", "lrp")
    noisy = {(cell, Variant("contrastive", "full", "all", "full"), "peak"): Score(1e-4, 10)}
    quiet = {(cell._replace(task="qa"), Variant("contrastive", "full", "all", "full"), "peak"): Score(0.1, 10)}
    results = replace(results, scores={**results.scores, **noisy, **quiet})
    shown = {name: table(results, name) for name in ("table1", "table2", "table1_random", "table6")}
    assert "noise: on most samples, no token has more than 0.001 % of the logit" in shown["table1"].caption
    sva, qa = lines_of(shown["table1"])
    assert sva.count("| noise") == 4
    assert "noise" not in qa
    assert lines_of(shown["table2"])[0].startswith("gpt2 | noise | 49.9"), "of target explanations it is no noise"
    assert "gpt2 | LRP | noise | noise" in lines_of(shown["table1_random"])[0]
    assert "noise" not in table(some_results(), "table1").caption


def table(results, name):
    return next(candidate for candidate in score_tables(results) if candidate.name == name)


def values(result, row=0):
    return [cell.value for cell in result.rows[row].cells]


def test_overview_has_a_row_for_each_task_and_model_and_marks_nothing_that_no_test_tells():
    shown = table(some_results(models=("gpt2", "llama")), "table1")
    assert [(row.section, row.labels) for row in shown.rows] == [
        ("sva", ("gpt2",)), ("sva", ("llama",)), ("qa", ("gpt2",)), ("qa", ("llama",))
    ]  # fmt: skip
    assert [(c.group, c.label) for c in shown.columns][:5] == [
        ("AttnLRP", "PG"), ("AttnLRP", "MRR"), ("AttnLRP", "RMA"), ("AttnLRP", "PTA"), ("LRP", "PG")
    ]  # fmt: skip
    assert not any(cell.mark for row in shown.rows for cell in row.cells)


def test_alti_stands_in_the_column_of_alti_logit():
    results = some_results(models=("bert",), methods=("alti", "random"))
    results = Results(**(vars(results) | {"methods": records("alti_logit", "alti", "random")}))
    shown = table(results, "table1")
    assert shown.columns[0].group == "ALTI-Logit/ALTI"
    assert values(shown)[0] == 30.0


def test_missing_and_partial_cells_say_so_and_undefined_ones_are_a_dash():
    cell = CellKey("gpt2", "sva", "float32", "lrp")
    results = some_results(missing=(cell,))
    states = dict(results.states) | {cell: "partial"}
    states.pop(CellKey("gpt2", "qa", "float32", "lrp"))
    shown = table(Results(**(vars(results) | {"states": states})), "table1")
    assert [in_words(row.cells[4], shown.columns[4]) for row in shown.rows] == ["partial", "–"]


@pytest.mark.parametrize(
    ("name", "sides", "pair"),
    [
        ("table2", ("contrastive", "target"), (60.0, 59.9)),
        ("table3", ("without", "with"), (60.0, 59.7)),
        ("table4", ("context", "full"), (60.0, 59.6)),
        ("table6", ("full", "partial"), (60.0, 59.8)),
        ("table7", ("full", "partial"), (60.0, 59.8)),
    ],
)
def test_pairs_hold_two_settings_side_by_side(name, sides, pair):
    shown = table(some_results(), name)
    row = shown.rows[0]
    assert tuple(column.side for column in shown.columns[:2]) == sides
    assert tuple(cell.value for cell in row.cells[:2]) == pytest.approx(pair)
    assert [cell.mark for cell in row.cells[:2]] == ["", ""], "no test stands behind the difference"


def test_pairs_leave_out_methods_and_tasks_without_the_choice():
    assert {c.group for c in table(some_results(), "table2").columns} == {"AttnLRP", "LRP"}
    assert {row.section for row in table(some_results(), "table4").rows} == {"qa"}
    assert {c.group for c in table(some_results(), "table4").columns} == {"AttnLRP", "LRP", "Random"}


def test_precision_needs_both():
    assert table(some_results(), "table5").rows == ()
    shown = table(some_results(dtypes=("float64", "bfloat16")), "table5")
    assert values(shown)[:2] == [60.0, 59.5]
    assert shown.rows[0].labels == ("gpt2", "bfloat16")


def test_tables_6_and_7_have_the_papers_numbers_and_7_every_method():
    ours = some_results(published={("gpt2", "sva"): "gpt2"}, methods=("attnlrp", "lrp", "gradient_l2", "random"))
    six, seven = (table(ours, name) for name in ("table6", "table7"))
    assert [cell.reference for cell in six.rows[0].cells[:2]] == [39, 41]
    assert six.columns == seven.columns, "no other method has a choice of embeddings here"
    assert seven.rows == six.rows


def test_models_without_a_choice_of_embeddings_are_left_out_of_table_6():
    results = some_results(models=("gpt2", "llama"))
    full = {(cell, variant, metric): score for (cell, variant, metric), score in results.scores.items()}
    for cell, variant, metric in full:
        if cell.model == "llama" and variant.embedding == "partial":
            full[cell, variant, metric] = full[cell, variant._replace(embedding="full"), metric]
    same = Results(**(vars(results) | {"scores": full}))
    assert {row.labels for row in table(same, "table6").rows} == {("gpt2",)}
    assert {row.labels for row in table(same, "table2").rows} == {("gpt2",), ("llama",)}


def test_close_look_stands_beside_a_published_model_only():
    ours = some_results(models=("mine",), published={("mine", "sva"): "gpt2"})
    shown = table(ours, "table1")
    assert shown.rows[0].cells[0].reference == 39, "table 1: gpt2, sva, AttnLRP, PG"
    assert shown.rows[0].cells[0].difference == 21
    assert shown.rows[1].cells[0].reference is None, "qa was not published data here"


@pytest.mark.parametrize(
    ("key", "number"),
    [
        (("1", "left", "ra", "gpt2-xl", "alti_logit", "mrr"), 93),
        (("1", "left", "qa", "bert-large-uncased", "lrp", "pta"), 57),
        (("1", "left", "sva", "bert-base-uncased", "alti", "pg"), 31),
        (("2", "right", "sva", "gpt2", "alti_logit", "pg"), 2),
        (("3", "right", "qa", "Llama-3.1-8B", "lrp", "pg"), 11),
        (("4", "right", "qa", "gpt2-medium", "gradient_l2", "rma"), 26),
        (("5", "right", "qa", "Llama-3.2-1B", "attnlrp", "mrr"), 77),
        (("6", "right", "ra", "gpt2", "lrp", "pg"), 49),
        (("8", "V100", "sva", "gpt2", "attnlrp_explicit", "ms"), 22.3),
        (("9", "left", "ra", "Llama-3.2-1B", "none", "accuracy"), 100),
    ],
)
def test_close_look_is_transcribed(key, number):
    assert close_look()[key] == number


def test_close_look_repeats_table_1_in_its_other_tables():
    numbers = close_look()
    for (table, side, *cell), value in numbers.items():
        if table in ("2", "3", "4", "6") and side == "left":
            assert numbers["1", "left", *cell] == value
    counts = {table: sum(key[0] == table for key in numbers) for table in "1234569"}
    assert counts == {"1": 528, "2": 594, "3": 438, "4": 252, "5": 258, "6": 216, "9": 27}


@pytest.mark.parametrize("higher", [True, False])
def test_the_group_that_no_method_beats_is_marked_whatever_is_largest(higher):
    shares = np.array([0.9, 0.88, 0.2]) if higher else np.array([0.1, 0.12, 0.8])
    drawn = np.random.default_rng(0).random((60, 3, 1)) < shares[None, :, None]
    compared = compare(drawn.astype(float), ("a", "b", "c"), ("x",), Resampling(500), shares=True)
    marks = [marked_if_best(Cell(50.0), compared, name, "x", higher).mark for name in "abc"]
    assert marks == ["best", "best", ""]
    assert marked_if_best(Cell(None, "missing"), compared, "a", "x", higher).mark == ""
    equal = compare(np.ones((60, 2, 1)), ("a", "b"), ("x",), Resampling(500), shares=True)
    assert marked_if_best(Cell(50.0), equal, "a", "x", higher).mark == "", "nothing is told apart"
    assert marked_if_best(Cell(50.0), None, "a", "x", higher).mark == ""


def test_a_method_of_a_package_stands_where_its_record_says():
    theirs = replace(METHODS["lrp"], name="lrp", label="Their method", order=5, column="theirs")
    results = some_results(methods=("attnlrp", "lrp", "random"))
    results = Results(**(vars(results) | {"methods": records("attnlrp", "random") | {"lrp": theirs}}))
    groups = [column.group for column in table(results, "table1").columns]
    assert list(dict.fromkeys(groups)) == ["Their method", "AttnLRP", "Random"]
    assert table(results, "table1_random").rows[0].labels == ("gpt2", "Their method")


def test_a_run_without_a_baseline_has_no_differences_from_it():
    results = some_results(methods=("attnlrp", "lrp"))
    assert results.baseline is None
    shown = table(results, "table1_random")
    assert [column.side for column in shown.columns] == [""] * len(METRICS)
    assert [column.label for column in shown.columns] == ["%"] * len(METRICS)
    assert some_results().baseline == "random"


def test_the_caption_of_the_overview_names_the_tasks_with_a_scope():
    assert "no special tokens, on qa the context only. Percent" in table(some_results(), "table1").caption
    results = some_results()
    plain = Results(**(vars(results) | {"tasks": {"sva": TASKS["sva"], "qa": Task(name="qa", title="qa")}}))
    assert "no special tokens. Percent" in table(plain, "table1").caption
