"""The list of architectures that is shipped."""

from closelook.jobs.commands.listings import architectures
from closelook.jobs.commands.listings.architectures import outcomes
from closelook.lrp_core.families.generic import UNSOUND


def test_an_architecture_is_listed_once():
    names = [(outcome.name, outcome.head) for outcome in outcomes()]
    assert len({*names}) == len(names)


def test_passing_architectures_are_printed_by_head(capsys):
    architectures.show()
    printed = capsys.readouterr().out
    assert "GPT2LMHeadModel" in printed
    for head in architectures.HEADS:
        assert f"{head}: " in printed


def test_architectures_whose_relevance_does_not_sum_are_those_that_methods_refuse():
    found = {each.name for each in outcomes() if "sum by" in each.reason and "sum by inf" not in each.reason}
    assert found == UNSOUND
