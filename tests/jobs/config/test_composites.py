"""Composites of a config: by name, as a grid whose choice is left open, and what is wrong with one."""

import pytest

from closelook.jobs.config import RunConfig
from closelook.jobs.config.file import ConfigError
from closelook.jobs.config.methods import configured, left_open


def loaded(composites, *methods, **more):
    raw = {
        "name": "mine",
        "root": "nowhere",
        "tasks": {"ra": {"source": "demo", "limit": 4}},
        "models": [{"name": "gpt2", "id": "demo/gpt2", **more.pop("model", {})}],
        "methods": list(methods),
        "composites": composites,
        **more,
    }
    return RunConfig.load(raw)


def test_a_named_composite_is_written_out_and_enters_the_key():
    first = loaded({"mine": {"linear": {"gamma": 0.1}}}, {"attnlrp": {"composite": "mine"}}, "lrp")
    other = loaded({"mine": {"linear": {"gamma": 0.2}}}, {"attnlrp": {"composite": "mine"}}, "lrp")
    assert first.methods[0].options == {"composite": "linear gamma 0.1"}
    assert configured(first)["attnlrp"].key() != configured(other)["attnlrp"].key()
    assert configured(first)["lrp"].key() == configured(other)["lrp"].key()
    assert RunConfig.load(first.model_dump(mode="json")) == first, "a kept configuration says the same"


def test_a_model_of_its_own_methods_knows_the_names():
    config = loaded({"mine": {"softmax": "zplus"}}, "lrp", model={"methods": [{"attnlrp": {"composite": "mine"}}]})
    assert config.models[0].methods[0].options == {"composite": "softmax zplus"}


def test_a_list_of_rules_is_a_grid_that_select_chooses_from():
    grid = {"linear": ["epsilon", {"gamma": 1}], "softmax": ["epsilon", "zplus"]}
    config = loaded({"grid": grid}, {"attnlrp": {"composite": "grid"}}, select={})
    composites = [options["composite"] for options in left_open(config.methods[0])]
    assert composites == ["epsilon", "softmax zplus", "linear gamma 1", "linear gamma 1, softmax zplus"]
    both = loaded({"grid": grid}, {"attnlrp": {"composite": ["vit", "grid"]}}, select={})
    assert len(left_open(both.methods[0])) == 5
    with pytest.raises(ConfigError, match=r"attnlrp lists values for 'composite': add `select: {}`"):
        loaded({"grid": grid}, {"attnlrp": {"composite": "grid"}})


@pytest.mark.parametrize(
    ("composite", "says"),
    [
        ({"linera": "gamma"}, "'composites.mine': no group of layers 'linera' .did you mean 'linear'"),
        ({"linear": "gama"}, "'composites.mine': linear has no rule 'gama' .did you mean 'gamma'"),
        (
            {"linear": {"gamma": -1}},
            "'composites.mine': linear: the rule gamma needs a finite number, at least 0, not -1",
        ),
    ],
)
def test_what_is_wrong_with_a_composite_is_one_line_with_the_nearest_name(composite, says):
    with pytest.raises(ConfigError, match=f"^config key {says}") as error:
        loaded({"mine": composite}, "attnlrp")
    assert "\n" not in str(error.value)


def test_an_unknown_name_is_matched_against_the_names_of_the_config_too():
    mine = {"sharper": {"linear": {"gamma": 1}}}
    for written in ("sharpe", ["vit", "sharpe"]):
        with pytest.raises(
            ConfigError, match=r"^config key 'methods': attnlrp: no composite 'sharpe' .did you mean 's"
        ):
            loaded(mine, {"attnlrp": {"composite": written}}, select={})
    with pytest.raises(ConfigError, match=r"no composite 'vitt' .did you mean 'vit'"):
        loaded(mine, {"attnlrp": {"composite": "vitt"}})
    with pytest.raises(ConfigError, match=r"no composite 'zzz'; there are epsilon, sharper, vit"):
        loaded(mine, "lrp", model={"methods": [{"attnlrp": {"composite": "zzz"}}]})


def test_an_unknown_name_and_a_softmax_for_lrp_are_refused():
    with pytest.raises(ConfigError, match=r"attnlrp: option 'composite': no composite 'vitt' .did you mean 'vit'"):
        loaded({}, {"attnlrp": {"composite": "vitt"}})
    with pytest.raises(ConfigError, match=r"lrp: option 'composite': its rule for softmax cannot be changed"):
        loaded({"mine": {"softmax": "zplus"}}, {"lrp": {"composite": "mine"}})
