"""Methods as they are typed: with their options, in a command and in Python."""

import pytest
import torch

import closelook
from closelook.jobs.methods import METHODS
from closelook.lrp_core.records.types import UserError
from closelook.methods import parse_method, parse_methods


def test_options_stand_behind_colons_and_methods_between_commas():
    several = "lrp, attnlrp:composite=vit,integrated_gradients:steps=25:rule=gauss_legendre"
    entries = parse_methods(several)
    assert [entry.name for entry in entries] == several.replace(", ", ",").split(",")
    assert entries[0] is METHODS["lrp"]
    assert entries[1].key() == METHODS["attnlrp"].configured(composite="vit").key()
    assert entries[2].values["steps"] == 25
    assert entries[2].values["rule"] == "gauss_legendre"


def test_what_stands_between_brackets_belongs_to_the_value():
    [mine, other] = parse_methods("attnlrp:composite={linear: {gamma: 0.1}, softmax: zplus},random")
    assert mine.values["composite"] == "linear gamma 0.1, softmax zplus"
    assert other.name == "random"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("atnlrp:composite=vit", "unknown method 'atnlrp' (did you mean 'attnlrp'?)"),
        ("attnlrp:composit=vit", "attnlrp has no option 'composit' (did you mean 'composite'?)"),
        ("attnlrp:composite=vitt", "no composite 'vitt' (did you mean 'vit'?)"),
        ("attnlrp:vit", "its options are written attnlrp:OPTION=VALUE, not 'vit'"),
        ("smoothgrad:sigma=[0.1, 0.2]", "smoothgrad: option 'sigma' must be a number"),
        ("smoothgrad:sigma=[0.1", "the value is not YAML"),
        ("lrp,attnlrp,lrp", "method 'lrp' is named twice"),
    ],
)
def test_what_cannot_be_is_one_line(text, message):
    with pytest.raises(UserError) as error:
        parse_methods(text)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_python_takes_what_a_command_takes():
    ways = [
        "lrp",
        "lrp:composite={linear: {gamma: 1}}",
        METHODS["lrp"].configured("mine", composite={"linear": {"gamma": 1}}),
    ]
    explanation = closelook.explain("The keys to the cabinet", "are", model="demo/gpt2", method=ways)
    assert not torch.allclose(explanation["lrp"], explanation[ways[1]])
    torch.testing.assert_close(explanation[ways[1]], explanation["mine"])
    assert parse_method(ways[1]).label == "LRP (composite=linear gamma 1)"
