from dataclasses import replace

from closelook.lrp_core.families.base import Family
from closelook.lrp_core.families.layout import STEADY_ROTARY, LabelHead, Requirement
from closelook.lrp_core.families.llama import LLAMA
from closelook.lrp_core.records.kinds import CAUSAL

#: Attention and MLP read the residual stream through one norm, side by side.
PHI = Family(
    name="phi",
    kind=CAUSAL,
    blocks="model.layers",
    token_embedding="model.embed_tokens",
    norm="layer",
    norm_order="pre",
    final_norm="model.final_layernorm",
    label_head=LabelHead("score"),
    output="self_attn.dense",
    mlp_norm="input_layernorm",
    activation="mlp.activation_fn",
    up="mlp.fc1",
    down="mlp.fc2",
    grouped=True,
    requires=(STEADY_ROTARY, Requirement("qk_layernorm", (False,))),
)
PHI3 = replace(
    LLAMA,
    name="phi3",
    query="self_attn.qkv_proj",
    key="self_attn.qkv_proj",
    value="self_attn.qkv_proj",
    qkv="joined",
    activation="mlp.activation_fn",
    gate="mlp.gate_up_proj",
    up="mlp.gate_up_proj",
)
