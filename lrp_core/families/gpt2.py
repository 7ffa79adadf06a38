from dataclasses import replace

from closelook.lrp_core.families.base import Family
from closelook.lrp_core.families.layout import LabelHead, Requirement
from closelook.lrp_core.records.kinds import CAUSAL

GPT2 = Family(
    name="gpt2",
    kind=CAUSAL,
    blocks="transformer.h",
    token_embedding="transformer.wte",
    position_embedding="transformer.wpe",
    norm="layer",
    norm_order="pre",
    final_norm="transformer.ln_f",
    label_head=LabelHead("score"),
    attention="attn",
    query="attn.c_attn",
    key="attn.c_attn",
    value="attn.c_attn",
    output="attn.c_proj",
    attention_norm="ln_1",
    mlp_norm="ln_2",
    activation="mlp.act",
    up="mlp.c_fc",
    down="mlp.c_proj",
    qkv="joined",
    transposed=True,
    activation_field="activation_function",
    feed_forward_field="n_inner",
    max_length_field="n_positions",
    requires=(Requirement("add_cross_attention", (False,)), Requirement("reorder_and_upcast_attn", (False,))),
)
#: Scores are not scaled, and every other layer sees the last few tokens only: a buffer of the module says which.
GPT_NEO = replace(
    GPT2,
    name="gpt_neo",
    attention="attn.attention",
    query="attn.attention.q_proj",
    key="attn.attention.k_proj",
    value="attn.attention.v_proj",
    output="attn.attention.out_proj",
    qkv="separate",
    transposed=False,
    feed_forward_field="intermediate_size",
    max_length_field="max_position_embeddings",
    eager_only=True,
    own_kernel="_attn",
    requires=(),
)
