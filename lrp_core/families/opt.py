from closelook.lrp_core.families.base import Family
from closelook.lrp_core.families.layout import LabelHead, Requirement, SameAs
from closelook.lrp_core.records.kinds import CAUSAL

OPT = Family(
    name="opt",
    kind=CAUSAL,
    blocks="model.decoder.layers",
    token_embedding="model.decoder.embed_tokens",
    position_embedding="model.decoder.embed_positions",
    norm="layer",
    norm_order="pre",
    final_norm="model.decoder.final_layer_norm",
    label_head=LabelHead("score"),
    output="self_attn.out_proj",
    attention_norm="self_attn_layer_norm",
    mlp_norm="final_layer_norm",
    activation="activation_fn",
    up="fc1",
    down="fc2",
    activation_field="activation_function",
    feed_forward_field="ffn_dim",
    requires=(
        Requirement("do_layer_norm_before", (True,)),
        Requirement("_remove_final_layer_norm", (False,)),
        Requirement("layer_norm_elementwise_affine", (True,), "its norms have no weights"),
        SameAs("word_embed_proj_dim", "hidden_size", "project_in stands between embeddings and blocks"),
    ),
)
