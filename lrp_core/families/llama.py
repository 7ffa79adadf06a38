from lrp_core.families.base import Family

LLAMA = Family(
    name="llama",
    masked=False,
    blocks="model.layers",
    token_embedding="model.embed_tokens",
    norm="rms",
    norm_order="pre",
    final_norm="model.norm",
    gate="mlp.gate_proj",
    grouped=True,
    norm_eps="variance_epsilon",
)
