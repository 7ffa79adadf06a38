"""The list of mutants cannot rot: the text of each is where it says it is, and so is the test that catches it."""

from collections import Counter

import pytest

from tests.mutants.__main__ import MUTANTS, problems_of


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_has_its_text_and_its_test(mutant):
    assert list(problems_of(mutant)) == []


def test_mutants_have_names_of_their_own_and_say_what_becomes_wrong():
    assert set(Counter(mutant.name for mutant in MUTANTS).values()) == {1}
    assert all(mutant.effect.endswith(".") for mutant in MUTANTS)
