"""attnlrp and lrp compared with the rules of lxt, where it is installed. It is a peer, not the truth.

lxt patches classes for the whole process, so it runs in one of its own. Its model files follow an older transformers
and do not import under version 5; its rules do, and are put on Llama here as its own patch map does. Differences left
are rounding: lxt divides g(z) by z + 1e-10 and runs in float32, where a division by a small z costs digits.
"""

import json
import subprocess
import sys

import pytest
import torch

from closelook.lrp_core import Batch, attribute
from tests.tiny import ragged_rows, tiny_model

LXT = """
import json, sys, types
import torch
stub = types.ModuleType("lxt.efficient.models")
stub.get_default_map = None
sys.modules["lxt.efficient.models"] = stub
from lxt.efficient import patches
from transformers import AttentionInterface
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm
from closelook.lrp_core import Batch
from tests.tiny import ragged_rows, tiny_model

method = sys.argv[1]
gated = {"attnlrp": patches.gated_mlp_forward, "lrp": patches.cp_gated_mlp_forward}[method]
around = {"attnlrp": patches.wrap_attention_forward, "lrp": patches.cp_wrap_attention_forward}[method]
LlamaMLP.forward, LlamaRMSNorm.forward = gated, patches.rms_norm_forward
AttentionInterface.register("sdpa", around(AttentionInterface()["sdpa"]))
view = tiny_model("llama", dtype="float32")
batch = Batch.collate(ragged_rows(view, lengths=(7,)), 0)
token = view.token_embedding(batch.input_ids).requires_grad_()
logits = view.model(inputs_embeds=token).logits[0, batch.position[0]]
(logits[batch.target_ids[0]] - logits[batch.foil_ids[0]]).backward()
print(json.dumps((token.grad * token).sum(-1).tolist()))
"""


@pytest.mark.usefixtures("lxt")
@pytest.mark.parametrize("method", ["attnlrp", "lrp"])
def test_llama_relevance_equals_lxt(method):
    run = subprocess.run([sys.executable, "-c", LXT, method], capture_output=True, text=True, check=True)
    view = tiny_model("llama", dtype="float32")
    ours = attribute(method, view, Batch.collate(ragged_rows(view, lengths=(7,)), 0)).tokens
    torch.testing.assert_close(ours, torch.tensor(json.loads(run.stdout)), rtol=1e-4, atol=1e-5)
