"""Forwards as plans count them, compared with the rows that really pass a model's blocks, forward and backward."""

from contextlib import contextmanager

import pytest

from closelook.jobs.config import RunConfig
from closelook.jobs.config.methods import configured
from closelook.jobs.methods import METHODS, applicable
from closelook.jobs.plan.cells import forwards, requests_of
from closelook.jobs.products.explaining import Explainer
from closelook.lrp_core.operations.watching import watched
from tests.tiny import tiny_model

TOKENS = 9
ROWS = 2
#: Whose work is not in the blocks, or is the model's in part: the count says no more than a lower bound.
ELSEWHERE = {"attnlrp_explicit", "value_zeroing", "alti", "alti_logit", "globenc", "decompx"}
FEW = {"integrated_gradients": {"steps": 6}, "smoothgrad": {"samples": 5}, "kernel_shap": {"samples": 20}}
METERED = {(TOKENS - 1).bit_length()}  # a CPU tells memory in another run
EVERY = ["contrastive", "target", "log_prob"]


@contextmanager
def counted(view):
    """Forwards and backwards of a batch, as shares of all tokens that pass all blocks."""
    passed = {"forwards": 0.0, "backwards": 0.0}
    whole = TOKENS * ROWS * view.n_layers

    def after(module, inputs, output):
        hidden = output[0] if isinstance(output, tuple) else output
        share = hidden.shape[:-1].numel() / whole
        passed["forwards"] += share
        hidden = watched(hidden, lambda _: passed.update(backwards=passed["backwards"] + share), keep=False)
        return (hidden, *output[1:]) if isinstance(output, tuple) else hidden

    hooks = [block.register_forward_hook(after) for block in view.model.get_submodule(view.family.blocks)]
    yield passed
    for hook in hooks:
        hook.remove()


def rows_for(view):
    """Predictions that read all tokens: at the first of an encoder, at the last of a causal model."""
    prediction = {"position": TOKENS - 1 if view.kind.causal else 0, "target_id": 1, "foil_id": 0}
    return [{"sample_id": str(at), "input_ids": [*range(5 + at, 5 + at + TOKENS)], **prediction} for at in range(ROWS)]


def run_of(methods, explanations):
    settings = {
        "name": "count",
        "root": "nowhere",
        "tasks": {"sva": {"source": "demo"}},
        "models": [{"name": "m", "id": "demo/bert"}],
        "methods": methods,
        "explanations": explanations,
    }
    return RunConfig.model_validate(settings)


def spent(view, config, product="relevance"):
    known = configured(config)
    requests = tuple(request for method in known.values() for request in requests_of(config, method))
    with counted(view) as passed:
        Explainer(view, requests, product, methods=known, metered=METERED).batch(rows_for(view))
    return sum(passed.values())


@pytest.mark.parametrize("explanations", [EVERY[:1], EVERY])
@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_a_record_claims_what_its_method_runs(family, explanations):
    view = tiny_model(family)
    for method in applicable(view.family.capabilities):
        name = method.name
        config = run_of([{name: FEW.get(name, {})}], explanations)
        claimed, ran = forwards(config, configured(config)[name], TOKENS), spent(view, config)
        of_last_layer = 1 if name == "gradcam" else 0  # its gradient stops there: half of these models, little of large
        assert ran <= claimed + of_last_layer * len(explanations), name
        from_the_middle = name == "atman" and view.kind.causal  # what precedes a token does not see it go
        if name not in ELSEWHERE and not from_the_middle:
            assert claimed <= 1.25 * ran, name


def test_methods_of_a_run_share_passes():
    methods = [
        "gradient_l1",
        "gradient_x_input",
        "lrp",
        "attnlrp",
        {"integrated_gradients": {"steps": 5}},
        {"name": "ig3", "method": "integrated_gradients", "steps": 3},
        "logat",
        "normxlogit",
        "random",
    ]
    config, view = run_of(methods, EVERY), tiny_model("gpt2")
    # one forward, three rules of three numbers; steps there and, for each number, back; 1 for both that read states
    assert spent(view, config) == pytest.approx((1 + 3 * 3) + (2 * 5 + 2 + 2 * 5) + (2 * 3 + 2 + 2 * 3) + 1 + 1)


@pytest.mark.parametrize("product", ["heads", "layers", "neurons"])
def test_finer_relevance_costs_the_passes_of_those_that_give_it(product):
    view = tiny_model("gpt2")
    names = [name for name in METHODS if product in METHODS[name].gives]
    names = [name for name in names if not METHODS[name].missing(view.family.capabilities) and name not in ELSEWHERE]
    assert names
    for name in names:
        config = run_of([name], EVERY[:2])
        claimed, ran = forwards(config, configured(config)[name], TOKENS), spent(view, config, product)
        assert ran <= claimed <= 1.25 * ran
