"""The first screen: methods in groups by tests, with sentences that say what the tests say."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from closelook.evaluation.report.overview.first_screen import levels, picture, sentence
from closelook.evaluation.report.overview.glossary import TERMS
from closelook.evaluation.report.overview.leaderboard import (
    boards,
    glossary,
    leaderboard,
    left_out,
    method_seconds,
)
from closelook.evaluation.report.overview.standings import CHANCE, DELTA, TOP, UNDER, OtherNumbers
from closelook.evaluation.report.results import CellKey, Results, Score, Variant
from closelook.evaluation.scoring.intervals import Resampling
from closelook.evaluation.scoring.metrics import METRICS, lead
from closelook.evaluation.scoring.statistics import compare
from closelook.evaluation.tasks import TASKS
from closelook.jobs.methods import METHODS

NAMES = ("lrp", "attnlrp", "gradient_x_input", "random")
N = 60
VARIANT = Variant("contrastive", "full", "non_special", "full")


def compared(shares, measure, scale=100.0, names=NAMES):
    """A comparison of hits with these shares, drawn sample by sample."""
    drawn = np.random.default_rng(0).random((N, 1, 1))
    hits = (drawn < np.array(shares)[None, :, None]).astype(float)
    return compare(hits, names, (measure,), Resampling(500), scale, shares=True)


def some_results(shares=(0.95, 0.95, 0.5, 0.1), names=NAMES):
    return Results(
        models=("gpt2", "llama"),
        tasks={"sva": TASKS["sva"]},
        methods={name: METHODS[name] for name in names},
        dtypes={("gpt2", "sva"): ("float32",), ("llama", "sva"): ("float32",)},
        states={},
        scores={},
        comparisons={("gpt2", "sva", "float32"): compared(shares, lead(), names=names)},
    )


def test_methods_stand_in_groups_by_model_and_task():
    [board] = boards(some_results(), OtherNumbers())
    assert (board.model, board.task) == ("gpt2", "sva")
    groups = {standing.method: standing.group for standing in board.standings}
    assert groups == {"lrp": 1, "attnlrp": 1, "gradient_x_input": 2, "random": 3}
    assert all(
        standing.evidence.low <= standing.evidence.value <= standing.evidence.high for standing in board.standings
    )


def test_a_group_of_several_is_no_winner():
    [board] = boards(some_results(), OtherNumbers())
    assert board.conclusion.startswith("1 of 3 are shown to find the evidence less often than another.")
    assert [standing.method for standing in board.used] == ["lrp", "attnlrp"]
    assert f" With {N} samples, differences of PG below " in board.conclusion


def test_a_method_that_is_not_beaten_does_not_beat_all_that_are_beaten():
    comparison, names = compared((0.95, 0.9, 0.5, 0.1), lead()), list(NAMES)
    p = comparison.p.copy()
    at = names.index("lrp"), names.index("gradient_x_input")
    p[at] = p[at[::-1]] = 1.0  # only AttnLRP is shown to beat it
    p[names.index("lrp"), names.index("attnlrp")] = p[names.index("attnlrp"), names.index("lrp")] = 0.01
    results = replace(some_results(), comparisons={("gpt2", "sva", "float32"): replace(comparison, p=p)})
    [board] = boards(results, OtherNumbers())
    assert board.groups[0] == ["lrp"]
    assert board.conclusion.startswith("2 of 3 are shown to find the evidence less often than another.")


def test_a_board_of_few_clusters_has_tests_and_no_intervals():
    comparison = compared((0.95, 0.5, 0.5, 0.1), lead())
    none = np.full_like(comparison.low, np.nan)
    results = some_results()
    results = replace(results, comparisons={("gpt2", "sva", "float32"): replace(comparison, low=none, high=none)})
    [board] = boards(results, OtherNumbers())
    assert board.standings[0].evidence.low is None
    assert "less often than another" in board.conclusion


def test_methods_that_always_differ_alike_have_no_power_sentence():
    [board] = boards(some_results((1.0, 1.0), names=("lrp", "attnlrp")), OtherNumbers())
    assert board.conclusion == "No method is shown to find the evidence more often than another."


def test_methods_that_are_not_shown_to_beat_random_relevance_are_named():
    [board] = boards(some_results((0.5, 0.5, 0.5, 0.5)), OtherNumbers())
    assert board.conclusion == "No method is shown to find the evidence more often than random relevance does."
    assert board.used == []
    [board] = boards(some_results((0.9, 0.5, 0.05, 0.5)), OtherNumbers())
    assert "Not shown to find it more often than random relevance: AttnLRP, Gradient×Input." in board.conclusion
    assert {standing.label: standing.level for standing in board.standings} == {
        "LRP": TOP,
        "AttnLRP": CHANCE,
        "Gradient×Input": UNDER,
        "Random": CHANCE,
    }


def test_the_sentence_counts_pairs_and_says_how_sure_it_is():
    results = some_results()
    two = replace(
        results,
        comparisons={
            **results.comparisons,
            ("llama", "sva", "float32"): compared((0.95, 0.5, 0.1, 0.1), lead()),
        },
    )
    said = sentence(two, boards(two, OtherNumbers()))
    assert said.startswith(
        "LRP is among the best on 2 of 2 model-task pairs, AttnLRP on 1 of 2. Each pair has 60 samples"
    )
    nothing = some_results((0.5, 0.5, 0.5, 0.5))
    nothing = sentence(nothing, boards(nothing, OtherNumbers()))
    assert nothing == "No method is shown to find the evidence more often than random relevance does."


def test_the_table_of_levels_has_every_method_and_the_picture_those_with_both_numbers():
    results = some_results()
    numbers = OtherNumbers(faithfulness={("gpt2", "sva"): compared((3.0, 2.0, 0.5, 0.0), DELTA, 1.0)})
    shown = boards(results, numbers)
    assert [label for label, _ in levels(results, shown)] == ["LRP", "AttnLRP", "Gradient×Input", "Random"]
    [figure] = picture(results, shown)
    assert "Random" not in figure.svg
    assert all(name in figure.svg for name in ("LRP", "AttnLRP", "gpt2 · sva"))
    assert picture(results, boards(results, OtherNumbers())) == [], "nothing is drawn without faithfulness"


def test_differences_that_other_seeds_do_not_show_are_counted():
    names = ("lrp", "attnlrp", "random")
    shares = {"gpt2": (0.95, 0.5, 0.1), "seed1": (0.95, 0.45, 0.1), "seed2": (0.6, 0.6, 0.1)}
    results = replace(
        some_results(),
        dtypes={(model, "sva"): ("float32",) for model in shares},
        comparisons={
            (model, "sva", "float32"): compared(of_model, lead(), names=names) for model, of_model in shares.items()
        },
    )
    [board] = boards(replace(results, models=("gpt2",), seeds={"gpt2": ("seed1",)}), OtherNumbers())
    found = "of the 3 differences that tests find among LRP, AttnLRP, Random are found again in every model"
    assert board.conclusion.endswith(f" 3 {found} trained from another seed (1).")
    [board] = boards(replace(results, models=("gpt2",), seeds={"gpt2": ("seed1", "seed2")}), OtherNumbers())
    assert board.conclusion.endswith(f" 2 {found} trained from another seed (2).")
    [board] = boards(replace(results, models=("gpt2",)), OtherNumbers())
    assert "seed" not in board.conclusion


def test_a_failed_control_is_said_where_it_failed_and_changes_no_other_board():
    verdicts = {("gpt2", "sva", "lrp"): "", ("llama", "sva", "attnlrp"): "randomisation"}
    [board] = boards(some_results(), OtherNumbers(verdicts=verdicts))
    assert [standing.method for standing in board.used] == ["lrp", "attnlrp"]
    assert "control" not in board.conclusion
    [board] = boards(some_results(), OtherNumbers(verdicts={("gpt2", "sva", "attnlrp"): "randomisation"}))
    assert "Fails a control here: AttnLRP." in board.conclusion


def test_what_the_boards_leave_out_is_told_with_the_reason():
    cells = {name: CellKey("gpt2", "sva", "float32", name) for name in ("lrp", "alti_logit", "normxlogit")}
    results = replace(
        some_results(),
        tasks={name: TASKS[name] for name in ("sva", "qa", "next_word")},
        methods={name: METHODS[name] for name in (*NAMES, "alti", "alti_logit", "normxlogit")},
        states={cells["alti_logit"]: "missing", cells["normxlogit"]: "done"},
        scores={
            (cells["lrp"], VARIANT, lead()): Score(90.0, N + 3),
            (cells["normxlogit"], VARIANT, lead()): Score(90.0, N),
            (cells["normxlogit"], VARIANT._replace(tokens="all", scope="full"), "peak"): Score(0.0, N),
        },
    )
    reasons = dict(left_out(results, boards(results, OtherNumbers())))
    assert reasons["Task next_word"].startswith("no evidence is marked in its samples")
    assert reasons["Task qa"] == "no methods are compared; Tables say what is missing"
    absent = "NormXLogit (noise), ALTI-Logit (missing)"
    assert set(reasons["gpt2 · sva"].split(", ")) == {
        *absent.split(", "),
        "3 samples that some of the methods do not explain",
    }


def test_the_table_has_a_row_for_each_method_of_what_was_compared():
    table = leaderboard(boards(some_results(), OtherNumbers(seconds={("gpt2", "sva", "lrp"): 0.002})))
    rows = {row.labels: row.cells for row in table.rows}
    assert set(rows) == {("gpt2", label) for label in ("LRP", "AttnLRP", "Gradient×Input", "Random")}
    group, evidence, delta, cost, _ = rows["gpt2", "LRP"]
    assert (group.value, cost.value, delta.value) == (1, 2.0, None)
    assert evidence.n == N
    assert boards(replace(some_results(), comparisons={}), OtherNumbers()) == []


def test_seconds_of_a_method_are_its_pass_and_its_own_backward():
    row = {"model": "gpt2", "task": "sva", "dtype": "float32", "batch": 4}
    rows = [
        row | {"method": "gradients", "stage": "forward", "wall_s": 0.4},
        row | {"method": "lrp", "stage": "backward", "wall_s": 0.8},
        row | {"method": "lrp", "stage": "aggregate", "wall_s": 0.04},
        row | {"method": "random", "stage": "method", "wall_s": 0.4},
        row | {"method": "random", "stage": "method", "wall_s": 0.8},
        row | {"method": "random", "stage": "method", "wall_s": 90.0, "dtype": "float64"},
    ]
    seconds = method_seconds(some_results(), rows)
    assert seconds == pytest.approx({("gpt2", "sva", "lrp"): 0.31, ("gpt2", "sva", "random"): 0.15})


def test_every_word_of_the_first_screen_is_explained():
    words = dict(glossary(some_results()))
    assert {metric.label for metric in METRICS.values()} <= set(words)
    assert words["sva"] == "subject-verb agreement"
    assert "PG" in words


def test_the_glossary_of_the_documentation_is_that_of_the_report():
    page = (Path(__file__).parents[3] / "docs" / "glossary.md").read_text(encoding="utf-8")
    documented = page.split("|---|---|\n")[1].split("\n\n")[0].splitlines()
    assert documented == [f"| {term} | {meaning} |" for term, meaning in TERMS.items()]
