"""Rewritten models compute the same function with other weights, and come back bit-equal."""

import pytest
import torch

from closelook.lrp_core.families.generic import GenericFamily
from closelook.lrp_core.interventions.rewritten import rewritten
from closelook.lrp_core.opening.model import view_of
from tests.lrp_core.interventions.test_randomised import MODELS, logits_of, model_of, state_of

pytestmark = pytest.mark.numeric


@pytest.fixture(params=MODELS)
def view(request):
    return model_of(request.param)


@pytest.mark.thinned(3)
def test_the_function_stays_and_the_weights_do_not(view):
    view.model.double()
    generic = isinstance(view.family, GenericFamily)
    view = view_of(view.model, "generic") if generic else view_of(view.model)
    trained, logits = state_of(view), logits_of(view)
    names = []
    with rewritten(view, 5) as models:
        for name, changed in models:
            names.append(name)
            assert any(not torch.equal(weight, trained[path]) for path, weight in state_of(changed).items()), name
            assert torch.allclose(logits_of(changed), logits, rtol=1e-9, atol=1e-9), name
    assert all(torch.equal(weight, trained[path]) for path, weight in state_of(view).items())
    assert names == [] if generic else "values rotated" in names
