"""Calls that targets of the Makefile make, noted by a false Python, and cases that `thinned` leaves to the night."""

import shutil
import subprocess
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.conftest import not_chosen, thin

REPOSITORY = Path(__file__).parents[1]
FAMILIES = [f"family {i}" for i in range(18)]


def made(target, folder, failing):
    """The status of `make target`, and the calls of a Python that fails where its arguments have `failing`."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(REPOSITORY / name, folder)
    programs = folder / ".venv" / "bin"
    programs.mkdir(parents=True)
    for program in (programs / "python", programs / "closelook"):
        program.write_text(
            '#!/bin/sh\necho "$ATEN_CPU_CAPABILITY $* $PYTHONDONTWRITEBYTECODE" >> calls\n'
            f'case "$*" in *"{failing}"*) exit 1;; esac\n',
        )
        program.chmod(0o755)
    (folder / ".venv" / ".installed").touch()
    done = subprocess.run(["make", target], cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, (folder / "calls").read_text().splitlines()


@pytest.mark.usefixtures("make")
@pytest.mark.parametrize(("failing", "fails"), [("not ray", True), ("-m ray", True), ("nothing", False)])
def test_a_red_test_keeps_none_of_the_others_from_running_and_make_test_fails(tmp_path, failing, fails):
    status, calls = made("test", tmp_path, failing)
    assert ["-m not ray" in call for call in calls] == [True, False]
    assert "-m ray" in calls[1]
    assert all("not nightly" in call for call in calls)
    assert bool(status) == fails


@pytest.mark.usefixtures("make")
@pytest.mark.parametrize(
    ("failing", "fails"),
    [("-m nightly", True), ("numeric", True), ("recompute", True), ("tools.real", True), ("nothing", False)],
)
def test_a_red_test_at_night_keeps_no_other_from_running(tmp_path, failing, fails):
    clone, data = tmp_path / "clone", tmp_path / "shared" / "data"
    clone.mkdir()
    data.mkdir(parents=True)
    status, (nightly, *numeric, demo, recompute, real) = made("nightly", clone, failing)
    assert "-m nightly" in nightly
    assert [call.split()[0] for call in numeric] == ["default", "avx2"]
    assert all("-m numeric -n" in call for call in numeric), "of thinned tests, too, every case"
    root = demo.split("--root ")[1].strip()
    assert "run --config demo" in demo
    assert f"-m tests.recompute {root}" in recompute, "every number of the demo's report"
    assert "-m tools.real --data ../shared/data --quick" in real
    assert bool(status) == fails


@pytest.mark.usefixtures("make")
@pytest.mark.parametrize(("failing", "fails"), [("numeric", True), ("nothing", False)])
def test_numbers_are_compared_as_on_the_oldest_instruction_set(tmp_path, failing, fails):
    status, [call] = made("numeric", tmp_path, failing)
    assert call.startswith("default ")
    assert "-m numeric and not nightly --one-of 8 " in call
    assert bool(status) == fails


@pytest.mark.usefixtures("make")
def test_bytecode_is_written_even_where_the_environment_forbids_it(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "forbidden")
    _, [call] = made("numeric", tmp_path, "nothing")
    assert "forbidden" not in call


# which cases of a test that is marked `thinned` run by day


def cases(name, n, parameters):
    """A case for each parameter, as pytest collects them."""
    made = []
    for parameter in parameters:
        marks = [pytest.mark.thinned(n).mark] if n else []
        case = SimpleNamespace(path=Path("test.py"), originalname=name, parameter=parameter, marks=marks)
        case.get_closest_marker = lambda mark, marks=marks: next(
            (marker for marker in marks if marker.name == mark), None
        )
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


def test_n_tests_of_a_file_meet_every_case_together():
    items = [cases(f"test_{i}", 4, FAMILIES) for i in range(4)]
    thin([case for test in items for case in test])
    assert {family for test in items for family in by_day(test)} == set(FAMILIES)


def test_one_case_runs_by_day_whatever_n_is():
    items = cases("test_a", 9, FAMILIES[:2])
    thin(items)
    assert len(by_day(items)) == 1


def test_one_of_every_n_tests_of_a_file_is_chosen_and_of_the_next_file_another():
    items = [
        SimpleNamespace(path=Path(name), at=at) for name, count in (("a", 6), ("b", 6), ("c", 1)) for at in range(count)
    ]
    left = not_chosen(items, 3)
    chosen = [f"{item.path}{item.at}" for item in items if item not in left]
    assert chosen == ["a0", "a3", "b1", "b4", "c0"]
    assert not_chosen(items, 1) == []
