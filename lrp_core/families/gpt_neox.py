from closelook.lrp_core.families.base import Family
from closelook.lrp_core.families.layout import STEADY_ROTARY, LabelHead
from closelook.lrp_core.records.kinds import CAUSAL

GPT_NEOX = Family(
    name="gpt_neox",
    kind=CAUSAL,
    blocks="gpt_neox.layers",
    token_embedding="gpt_neox.embed_in",
    norm="layer",
    norm_order="pre",
    final_norm="gpt_neox.final_layer_norm",
    label_head=LabelHead("score"),
    attention="attention",
    query="attention.query_key_value",
    key="attention.query_key_value",
    value="attention.query_key_value",
    output="attention.dense",
    activation="mlp.act",
    up="mlp.dense_h_to_4h",
    down="mlp.dense_4h_to_h",
    qkv="per_head",
    requires=(STEADY_ROTARY,),
)
