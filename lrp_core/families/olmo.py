from dataclasses import replace

from lrp_core.families.llama import LLAMA

#: Nothing is normalised before attention and MLP, but what they put out, queries and keys are.
OLMO2 = replace(
    LLAMA,
    name="olmo2",
    norm_order="added",
    query_norm="self_attn.q_norm",
    key_norm="self_attn.k_norm",
    attention_norm="post_attention_layernorm",
    mlp_norm="post_feedforward_layernorm",
)
