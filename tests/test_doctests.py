"""The examples in docstrings give what they print. A room whose examples are to be run is added to ROOMS."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

from tests.synthetic import write_run

ROOMS = ("alti", "evaluation", "jobs", "lrp_core")
REPOSITORY = Path(__file__).parents[1]


def modules_with_examples():
    """Names of the modules with an example; others need not be imported."""
    for room in ROOMS:
        for path in sorted((REPOSITORY / room).rglob("*.py")):
            if ">>> " in path.read_text(encoding="utf-8"):
                parts = path.relative_to(REPOSITORY).with_suffix("").parts
                yield ".".join(("closelook", *(parts[:-1] if parts[-1] == "__init__" else parts)))


OF_A_RUN = "closelook.jobs.results"  # its examples read a run
MODULES = tuple(name for name in modules_with_examples() if name != OF_A_RUN)


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_docstrings_give_what_they_print(name, monkeypatch):
    monkeypatch.chdir(REPOSITORY)  # models of the demo are named by their path
    passes(name)


def passes(name):
    results = doctest.testmod(import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert results.attempted, "the text has an example that no docstring holds"
    assert not results.failed


def test_examples_that_read_a_run_give_what_they_print(tmp_path, monkeypatch):
    write_run(tmp_path / "runs" / "mine")
    monkeypatch.chdir(tmp_path)
    passes(OF_A_RUN)


def test_every_part_of_evaluation_that_computes_numbers_has_examples():
    assert {name.split(".")[2] for name in MODULES if name.startswith("closelook.evaluation.")} >= {"scoring", "report"}
