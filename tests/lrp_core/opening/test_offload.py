"""Models larger than memory: the same numbers, and blocks that are let go."""

import gc
import weakref

import pytest
import torch
from accelerate.utils import has_offloaded_params

from closelook.lrp_core import METHODS, Batch, attribute, load_model
from closelook.lrp_core.methods.gradients import forward_pass
from closelook.lrp_core.rules import ATTNLRP
from tests.tiny import ragged_rows, tiny_model


@pytest.fixture
def resident(family):
    return tiny_model(family, dtype="float32")


@pytest.fixture
def offloaded(resident, tmp_path):
    """The same model with most weights on disk."""
    resident.model.save_pretrained(tmp_path / "model")
    size = sum(p.numel() * p.element_size() for p in resident.model.parameters())
    ignored = {"device": "cuda:9"}  # the memory says where the model goes
    view = load_model(tmp_path / "model", max_memory={"cpu": size // 2}, offload_dir=tmp_path / "disk", **ignored)
    assert any(has_offloaded_params(module) for block in view.blocks for module in block.module.modules())
    return view


@pytest.mark.thinned(7)
@pytest.mark.parametrize("method", sorted(METHODS))
def test_offloaded_model_gives_the_same_numbers(resident, offloaded, method):
    batch = Batch.collate(ragged_rows(resident), 0)
    options = {"checkpoint": True} if METHODS[method].pass_name == "gradients" else {}
    expected, relevance = attribute(method, resident, batch), attribute(method, offloaded, batch, **options)
    torch.testing.assert_close(relevance.tokens, expected.tokens, rtol=1e-5, atol=1e-6)


def live_weights(view, checkpointing):
    """(alive, loaded): block weights still in memory after a forward whose graph is kept, and all that it loaded."""
    loaded = []
    pre_forward = []
    for block in view.blocks:
        for module in block.module.modules():
            if has_offloaded_params(module):
                pre_forward.append((module._hf_hook, module._hf_hook.pre_forward))
                module._hf_hook.pre_forward = _watch(module._hf_hook.pre_forward, loaded)
    batch = Batch.collate(ragged_rows(view), 0)
    forward = forward_pass(view, batch, batch, ["target"], [ATTNLRP], view.stacks if checkpointing else ())
    gc.collect()
    alive = sum(weight() is not None for weight in loaded)
    assert forward.output["target"].requires_grad
    for hook, original in pre_forward:
        hook.pre_forward = original
    return alive, len(loaded)


def _watch(pre_forward, loaded):
    def watched(module, *args, **kwargs):
        result = pre_forward(module, *args, **kwargs)
        if module.weight.dim() == 2:
            loaded.append(weakref.ref(module.weight))
        return result

    return watched


@pytest.mark.thinned(3)
def test_checkpointing_lets_offloaded_blocks_go(offloaded):
    alive, loaded = live_weights(offloaded, checkpointing=True)
    assert loaded > 0
    assert alive == 0


@pytest.mark.thinned(3)
def test_without_checkpointing_the_graph_keeps_offloaded_blocks(offloaded):
    alive, _ = live_weights(offloaded, checkpointing=False)
    assert alive > 0
