"""Which cases of a test run by day, where its mark leaves most of them to the night."""

from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.conftest import thin

FAMILIES = [f"family {i}" for i in range(18)]


def cases(name, n, parameters):
    """A case for each parameter, as pytest collects them."""
    made = []
    for parameter in parameters:
        marks = [pytest.mark.thinned(n).mark] if n else []
        case = SimpleNamespace(path=Path("test.py"), originalname=name, parameter=parameter, marks=marks)
        case.get_closest_marker = lambda mark, marks=marks: next((one for one in marks if one.name == mark), None)
        case.add_marker = lambda mark, marks=marks: marks.append(mark.mark)
        made.append(case)
    return made


def by_day(items):
    return [item.parameter for item in items if not item.get_closest_marker("nightly")]


def test_a_share_of_the_cases_runs_by_day_and_unmarked_tests_run_whole():
    thinned, whole = cases("test_a", 3, FAMILIES), cases("test_b", None, FAMILIES)
    thin([*thinned, *whole])
    assert len(by_day(thinned)) == len(FAMILIES) / 3
    assert by_day(whole) == FAMILIES


@pytest.mark.parametrize("n", [2, 3, 4])
def test_the_second_parameter_is_not_always_the_same(n):
    items = cases("test_a", n, product(FAMILIES, ("target", "contrastive")))
    thin(items)
    assert {explanation for _, explanation in by_day(items)} == {"target", "contrastive"}


def test_tests_of_a_file_meet_every_case_together():
    items = [cases(f"test_{i}", 4, FAMILIES) for i in range(4)]
    thin([case for test in items for case in test])
    assert {family for test in items for family in by_day(test)} == set(FAMILIES)


def test_one_case_runs_by_day_whatever_n_is():
    items = cases("test_a", 9, FAMILIES[:2])
    thin(items)
    assert len(by_day(items)) == 1
