"""Weights become random from the head down by the model's own initialiser, and come back bit-equal."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from closelook.lrp_core import Batch, UnsupportedModel
from closelook.lrp_core.interventions.randomised import depths_of, randomised
from closelook.lrp_core.opening.model import view_of
from tests.tiny import BOTH, FEWER, IMAGES, MORE, T5_RELU, TINY, picture_rows, ragged_rows, tiny_classifier, tiny_model

pytestmark = pytest.mark.numeric
TEXT = (*TINY, *MORE, *FEWER, *BOTH)
LABELLED = ("bert", "gpt2", "llama", "roberta", "distilbert", "electra", "modernbert", "deberta-v2")


def model_of(name):
    kind, _, family = name.partition(" ")
    if kind == "labels":
        return tiny_classifier(family)
    if kind == "tied":
        return tiny_model(family, **T5_RELU)
    if kind == "generic":
        return view_of(tiny_model(family).model, "generic")
    return tiny_model(name)


MODELS = (*TEXT, *IMAGES, *(f"labels {family}" for family in LABELLED), "tied t5", "generic gpt2", "generic bert")


@pytest.fixture(params=MODELS)
def view(request):
    return model_of(request.param)


def logits_of(view):
    rows = picture_rows(view) if view.kind.images else ragged_rows(view)
    batch = Batch.collate(rows, pad_id=view.pad_id)
    with torch.no_grad():
        return view.logits(batch)


def state_of(view):
    """Weights by every path that leads to them."""
    return {path: weight.clone() for path, weight in view.model.state_dict().items()}


@pytest.mark.thinned(4)
def test_a_depth_holds_the_random_weights_of_all_depths_before_it_and_of_no_other(view):
    trained = state_of(view)
    with randomised(view, 3) as models:
        states = {depth: state_of(changed) for depth, changed in models}
    names = depths_of(view)
    assert list(states) == names[::-1]
    final = states[names[-1]]
    changed_by = {}
    for depth in names:
        changed = {path for path, weight in states[depth].items() if not torch.equal(weight, trained[path])}
        assert all(torch.equal(states[depth][path], final[path]) for path in changed)
        changed_by[depth] = changed
    for before, after in pairwise(names):
        assert changed_by[before] < changed_by[after]
    matrices = {path for path, weight in trained.items() if weight.dim() > 1 and weight.is_floating_point()}
    weights = {path for path, _ in view.model.named_parameters(remove_duplicate=False)}
    assert matrices & weights <= changed_by[names[-1]]


@pytest.mark.thinned(4)
def test_a_block_changes_with_its_own_depth_only(view):
    names = depths_of(view)
    paths = [path for path, _ in view.model.named_parameters()]
    trained = state_of(view)
    for stack in view.stacks:
        count = len({id(next(block.parameters())) for block in view.model.get_submodule(stack)})
        prefix = "" if len(view.stacks) == 1 else "decoder " if "decoder" in stack else "encoder "
        assert sum(name.startswith(f"{prefix}block") for name in names) == count
        with randomised(view, 3) as models:
            for depth, changed in models:
                state = changed.model.state_dict()
                if depth == f"{prefix}block {count - 1}" and count > 1:
                    last = [path for path in paths if path.startswith(f"{stack}.{count - 1}.")]
                    first = [path for path in paths if path.startswith(f"{stack}.0.")]
                    assert any(not torch.equal(state[path], trained[path]) for path in last)
                    assert all(torch.equal(state[path], trained[path]) for path in first)


def leave_by_error(view, logits):
    with randomised(view, 3) as models:
        _, changed = next(models)
        assert not torch.allclose(logits_of(changed), logits)
        raise KeyError


@pytest.mark.thinned(4)
def test_afterwards_the_model_is_what_it_was(view):
    trained, logits = state_of(view), logits_of(view)
    weights = {path: id(weight) for path, weight in view.model.named_parameters(remove_duplicate=False)}
    marks = [vars(module).get("_is_hf_initialized") for module in view.model.modules()]
    random_state = torch.random.get_rng_state()
    config = view.config.to_dict()
    with pytest.raises(KeyError):
        leave_by_error(view, logits)
    assert all(torch.equal(weight, trained[path]) for path, weight in view.model.state_dict().items())
    assert {path: id(weight) for path, weight in view.model.named_parameters(remove_duplicate=False)} == weights
    assert [vars(module).get("_is_hf_initialized") for module in view.model.modules()] == marks
    assert torch.equal(torch.random.get_rng_state(), random_state)
    assert view.config.to_dict() == config
    assert torch.equal(logits_of(view), logits)


def drawn(view, seed):
    with randomised(view, seed) as models:
        return state_of(next(models)[1])


@pytest.mark.thinned(4)
def test_a_seed_decides_the_weights(view):
    first, again, other = (drawn(view, seed) for seed in (3, 3, 4))
    weights = {path: weight for path, weight in view.model.named_parameters() if weight.dim() > 1}
    assert all(torch.equal(first[path], again[path]) for path in first)
    assert all(not torch.equal(first[path], other[path]) for path in weights)


def test_weights_have_the_spread_of_the_initialiser():
    view = tiny_model("gpt2", hidden_size=64, n_inner=256, vocab_size=400)
    state = drawn(view, 0)
    assert state["transformer.h.0.mlp.c_fc.weight"].std() == pytest.approx(0.02, rel=0.05)
    assert state["lm_head.weight"].std() == pytest.approx(0.02, rel=0.05)
    assert torch.equal(state["transformer.ln_f.weight"], torch.ones(64, dtype=torch.float64))


def test_a_tied_head_changes_while_the_embeddings_stay():
    view = tiny_model("gpt2")
    assert view.unembedding.weight is view.token_embedding.weight
    trained = view.token_embedding.weight.clone()
    with randomised(view, 3) as models:
        for depth, changed in models:
            if depth == "head":
                assert torch.equal(changed.token_embedding.weight, trained)
                assert not torch.equal(changed.unembedding.weight, trained)
    assert view.unembedding.weight is view.token_embedding.weight


def test_weights_marked_as_initialised_are_drawn_all_the_same():
    view = tiny_model("llama")
    for holder in (*view.model.modules(), *view.model.parameters(), *view.model.buffers()):
        holder._is_hf_initialized = True
    trained = state_of(view)
    state = drawn(view, 3)
    assert not torch.equal(state["model.layers.0.mlp.up_proj.weight"], trained["model.layers.0.mlp.up_proj.weight"])
    assert all(holder._is_hf_initialized for holder in (*view.model.modules(), *view.model.parameters()))


def test_a_weight_that_the_initialiser_leaves_is_named():
    view = tiny_model("llama")
    block = view.blocks[1].module
    block.register_parameter("extra", nn.Parameter(torch.randn(3, dtype=torch.float64)))
    trained = state_of(view)
    with pytest.raises(UnsupportedModel, match=r"leaves model\.layers\.1\.extra unchanged$"), randomised(view, 3):
        pass
    assert all(torch.equal(weight, trained[path]) for path, weight in view.model.state_dict().items())
