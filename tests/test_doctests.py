"""The examples in docstrings give what they print. A room whose examples are to be run is added to ROOMS."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

ROOMS = ("alti", "evaluation", "jobs", "lrp_core")
REPOSITORY = Path(__file__).parents[1]


def modules_with_examples():
    """Names of the modules with an example; others need not be imported."""
    for room in ROOMS:
        for path in sorted((REPOSITORY / room).rglob("*.py")):
            if ">>> " in path.read_text(encoding="utf-8"):
                parts = path.relative_to(REPOSITORY).with_suffix("").parts
                yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = tuple(modules_with_examples())


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_docstrings_give_what_they_print(name, monkeypatch):
    monkeypatch.chdir(REPOSITORY)  # models of the demo are named by their path
    results = doctest.testmod(import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert results.attempted, "the text has an example that no docstring holds"
    assert not results.failed


def test_every_part_of_evaluation_that_computes_numbers_has_examples():
    assert {name.split(".")[1] for name in MODULES if name.startswith("evaluation.")} >= {"scoring", "report"}
