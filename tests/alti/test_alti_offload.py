"""A model larger than memory gives the same relevance, and its weights are let go."""

import torch
from accelerate.utils import has_offloaded_params

from closelook.alti import METHODS
from closelook.lrp_core import Batch, load_model
from tests.tiny import ragged_rows, tiny_model


def test_offloaded_model_gives_the_same_relevance(family, tmp_path):
    resident = tiny_model(family, dtype="float32")
    resident.model.save_pretrained(tmp_path / "model")
    size = sum(p.numel() * p.element_size() for p in resident.model.parameters())
    offloaded = load_model(tmp_path / "model", max_memory={"cpu": size // 2}, offload_dir=tmp_path / "disk")
    assert any(has_offloaded_params(module) for block in offloaded.blocks for module in block.module.modules())
    batch = Batch.collate(ragged_rows(resident), 0)
    methods = [method for method in METHODS.values() if not method.missing(resident.family.capabilities)]
    assert methods
    for method in methods:
        expected, relevance = method(resident, batch), method(offloaded, batch)
        torch.testing.assert_close(relevance.tokens, expected.tokens, rtol=1e-5, atol=1e-5, msg=method.name)
    offloaded_outputs = [block.output for block in offloaded.blocks if has_offloaded_params(block.output)]
    assert all(p.device.type == "meta" for output in offloaded_outputs for p in output.parameters())
