from dataclasses import replace

from lrp_core.families.gpt2 import GPT2

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
