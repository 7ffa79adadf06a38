"""Relevance is the derivative of a model that runs again with the rules' constants, computed without gradients."""

import pytest
import torch

from closelook.lrp_core.device.precision import unrounded
from closelook.lrp_core.operations import explain_operations
from closelook.lrp_core.rules import ATTNLRP, LRP
from tests.lrp_core.operations.replay import relevance_by_replay
from tests.tiny import tiny_model

pytestmark = pytest.mark.numeric

#: GPT-2's own activation is written by hand.
CHANGES = {"gpt2": {"activation_function": "gelu"}, "phi": {"hidden_act": "gelu"}}
IDS = torch.tensor([[5, 17, 33, 41, 29, 11, 8]])


@pytest.mark.parametrize("composite", [LRP, ATTNLRP], ids=lambda composite: composite.name)
@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "qwen3", "gemma2", "olmo2", "phi", "gpt_neox", "opt"])
def test_relevance_is_the_derivative_of_a_replay_with_the_constants_of_the_rules(family, composite):
    model = tiny_model(family, attn="eager", **CHANGES.get(family, {})).model
    inputs = {"input_ids": IDS} | ({} if family == "bert" else {"use_cache": False})

    def readout(output):
        return output.logits[:, -1, 23] - output.logits[:, -1, 40]

    def run():
        with unrounded(torch.float64):
            return readout(model(**inputs))[0]

    expected = relevance_by_replay(run, IDS, uniform=composite is ATTNLRP)
    ours = explain_operations(model, inputs, readout, [composite]).relevance[composite]["input_ids"].partial[0]
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-6 * float(expected.abs().max()))
