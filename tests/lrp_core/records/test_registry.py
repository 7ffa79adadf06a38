"""Tables to which other packages may add."""

from dataclasses import dataclass

import pytest

from closelook.lrp_core.records.registry import Registry
from closelook.lrp_core.records.types import UserError


@dataclass(frozen=True)
class Thing:
    name: str
    size: int = 0


def test_two_records_of_one_name_are_an_error_that_names_both_sides():
    table = Registry("thing", Thing("a"))
    with pytest.raises(UserError, match=r"their-package and closelook both bring a thing named 'a'"):
        table.register(Thing("a"), by="their-package")
    table.register(Thing("b"), by="one")
    with pytest.raises(UserError, match=r"other and one both bring a thing named 'b'"):
        table.register(Thing("b", 1), by="other")
    assert table.owner("b") == "one"


def test_the_very_same_record_may_come_again():
    thing = Thing("a")
    table = Registry("thing", thing)
    assert table.register(thing, by="other") is thing
    assert list(table) == ["a"]
    assert table.owner("a") == "closelook"


def test_records_keep_the_order_in_which_they_came():
    table = Registry("thing", Thing("z"), Thing("a"))
    table.register(Thing("m"), by="other")
    assert list(table) == ["z", "a", "m"]
