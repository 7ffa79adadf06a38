"""A caller's model is wrapped and explained, and afterwards it is what it was, to the last attribute."""

import pytest
import torch
import transformers
from torch import nn

from closelook.lrp_core import METHODS, Batch, UnsupportedModel
from closelook.lrp_core.families import family_of
from closelook.lrp_core.opening.model import view_of
from closelook.lrp_core.views.guard import left_as_it_was
from tests.tiny import BOTH, FEWER, MORE, TINY, ragged_rows, tiny_config, tiny_model

CHANGED_BY_VIEWS = ("mixtral", "t5")
EVERY = sorted(TINY | MORE | FEWER | BOTH)


def stock(family, **changes):
    """A model as transformers makes it, in training mode, with hooks, and with some parameters frozen."""
    config = tiny_config(family, **changes)
    torch.manual_seed(0)
    model = getattr(transformers, family_of(config).kind.auto).from_config(config).train()
    for number, (_, parameter) in enumerate(model.named_parameters()):
        parameter.requires_grad_(number % 3 > 0)
    next(iter(model.base_model.children())).eval()
    model.base_model.register_forward_hook(lambda *_: None)
    return model


def told(model):
    """Everything about a model that callers could notice: objects by identity, dictionaries by their entries."""
    facts = {}
    for path, module in model.named_modules():
        facts[path] = {name: entries(value) for name, value in vars(module).items()}
        config = vars(module).get("config")
        if config is not None:
            facts[f"{path}.config"] = dict(vars(config))
    facts["parameters"] = [(name, id(weight), weight.requires_grad) for name, weight in model.named_parameters()]
    facts["keys"] = list(model.state_dict())
    return facts


def entries(value):
    if isinstance(value, dict):
        return [(name, id(entry)) for name, entry in value.items()]
    return value if isinstance(value, bool | int | float | str | None) else id(value)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("family", EVERY)
def test_a_model_is_afterwards_what_it_was(family):
    model = stock(family)
    before = told(model)
    with left_as_it_was(model):
        view = view_of(model)
        inside = told(model)
        batch = Batch.collate(ragged_rows(view), pad_id=0)
        for name in ("lrp", "gradient_x_input", "occlusion"):
            if not METHODS[name].missing(view.family.capabilities):
                METHODS[name](view, batch)
    assert inside != before, "wrapping a model in training mode changes it, or this test sees nothing"
    assert told(model) == before


@pytest.mark.parametrize("family", CHANGED_BY_VIEWS)
def test_its_relevance_is_that_of_a_model_that_was_opened(family):
    view = tiny_model(family, dtype="float32")
    batch = Batch.collate(ragged_rows(view), pad_id=0)
    expected = METHODS["attnlrp"](view, batch)
    model = stock(family)
    model.load_state_dict(view.model.state_dict())
    with left_as_it_was(model):
        borrowed = view_of(model)
        relevance = METHODS["attnlrp"](borrowed, batch)
    torch.testing.assert_close(relevance.tokens, expected.tokens)


def test_the_config_of_a_model_in_double_precision_is_given_back():
    """Transformers' other kernels of experts do not compute in float64."""
    model = stock("mixtral").double()
    before = told(model)
    with left_as_it_was(model):
        view_of(model)
        assert told(model)[".config"] != before[".config"]
    assert told(model) == before


def interrupted(_):
    raise KeyboardInterrupt


def test_a_model_is_given_back_when_something_fails():
    model = stock("mixtral")
    before = told(model)
    with pytest.raises(KeyboardInterrupt), left_as_it_was(model):
        interrupted(view_of(model))
    assert told(model) == before


def test_what_is_no_model_of_transformers_is_refused_by_its_class():
    with pytest.raises(UnsupportedModel, match="Linear is no model of transformers"):
        view_of(nn.Linear(2, 2))
