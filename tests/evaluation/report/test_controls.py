"""The page of controls: verdicts in words, planted methods beside the run's, and what the first screen says of them."""

import pytest

from closelook.evaluation.report.overview.leaderboard import boards, leaderboard
from closelook.evaluation.report.overview.standings import OtherNumbers
from closelook.evaluation.report.sections.controls import controls_figure, controls_table, summary, verdicts
from closelook.evaluation.scoring.controls import (
    ARCHITECTURE,
    BY_DEPTH,
    BY_DEPTH_ABSOLUTE,
    CHANCE,
    RANDOMISED,
    ControlRow,
)
from closelook.jobs.methods import METHODS
from closelook.jobs.products.controls.rows import broken
from tests.evaluation.report.test_leaderboard import some_results


def rows_of(method: str, value: float, passed: bool | None, verdict: str = RANDOMISED) -> list[ControlRow]:
    """The rows of a method whose correlation falls from 1 to `value` over two depths."""
    cell, near = ("gpt2", "sva", method), (value - 0.1, value + 0.1)
    described = [ControlRow(*cell, ARCHITECTURE, 0.1, 0.0, 0.2, None, 20)]
    for control in (BY_DEPTH, BY_DEPTH_ABSOLUTE):
        described.append(ControlRow(*cell, control, 1.0, 0.9, 1.0, None, 20, "head"))
        described.append(ControlRow(*cell, control, value, *near, None, 20, "embeddings"))
    return [ControlRow(*cell, verdict, value, *near, passed, 20), *described]


ROWS = [
    *rows_of("attnlrp", 0.7, False),
    *rows_of("lrp", 0.1, True),
    *rows_of("random", 0.0, True, CHANCE),
    *rows_of("constant", 1.0, False),
]


def test_the_last_depth_decides_and_planted_methods_stand_last():
    table = controls_table(ROWS, METHODS)
    verdicts = {row.labels[1]: (row.cells[0].value, row.cells[-1].state) for row in table.rows}
    assert verdicts == {
        "AttnLRP": (0.7, "fails"),
        "LRP": (0.1, "passes"),
        "Random": (0.0, "passes"),
        "Constant, planted": (1.0, "caught"),
    }
    assert list(verdicts)[-1] == "Constant, planted"
    assert table.caption.endswith("AttnLRP fails on gpt2 · sva; methods of the run pass in 1 of 2 verdicts.")
    assert summary(ROWS[6:], METHODS) == "No method of the run fails; methods of the run pass in 1 of 1 verdicts."
    [too_few] = controls_table(rows_of("lrp", 0.1, None), METHODS).rows
    assert too_few.cells[-1].state == "too few samples"


def test_a_run_without_random_relevance_has_its_control_all_the_same():
    of_run = {name: METHODS[name] for name in ("attnlrp", "lrp")}
    table = controls_table(ROWS, of_run)
    assert [row.cells[-1].state for row in table.rows] == ["fails", "passes", "passes", "caught"]
    assert table.caption.endswith("AttnLRP fails on gpt2 · sva; methods of the run pass in 1 of 2 verdicts.")
    assert len(controls_figure(ROWS, of_run, None)) == 1


def test_the_figure_has_no_planted_method():
    [figure] = controls_figure(ROWS, METHODS, "random")
    lines = {point.line for point in figure.points}
    assert lines == {"AttnLRP", "LRP", "Random"}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (rows_of("constant", 0.0, True), "gpt2/sva: randomisation passes constant, which must fail"),
        (rows_of("random", 0.5, False, CHANCE), "gpt2/sva: chance: random is at 0.500, outside of [0.400, 0.600]"),
    ],
)
def test_a_control_that_misses_what_is_planted_is_broken(rows, message):
    assert broken(rows) == [message]
    assert broken(ROWS) == []


def test_the_first_screen_names_a_failed_control_beside_the_method():
    other_numbers = OtherNumbers(verdicts=verdicts(ROWS))
    [board] = boards(some_results(), other_numbers)
    assert {standing.method: standing.failed for standing in board.standings if standing.failed} == {
        "attnlrp": "randomisation"
    }
    assert "Fails a control here: AttnLRP." in board.conclusion
    rows = leaderboard([board]).rows
    assert [row.labels[1] for row in rows if row.cells[-1].state == "randomisation"] == ["AttnLRP"]
