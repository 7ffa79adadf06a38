from closelook.lrp_core.families.base import Family
from closelook.lrp_core.families.layout import STEADY_ROTARIES, LabelHead, Requirement
from closelook.lrp_core.records.kinds import MASKED

_OF_FIRST_TOKEN = Requirement("classifier_pooling", ("cls",), "a mean over tokens is read at none of them")
#: Pre-norm, and the first block has no norm before attention: that of the embeddings stands there.
MODERNBERT = Family(
    name="modernbert",
    kind=MASKED,
    blocks="model.layers",
    token_embedding="model.embeddings.tok_embeddings",
    embedding_norm="model.embeddings.norm",
    norm="layer",
    norm_order="pre",
    final_norm="model.final_norm",
    head_dense="head.dense",
    head_norm="head.norm",
    head_activation="gelu",
    label_head=LabelHead(
        "classifier", dense="head.dense", activation="gelu", norm="head.norm", requires=(_OF_FIRST_TOKEN,)
    ),
    attention="attn",
    query="attn.Wqkv",
    key="attn.Wqkv",
    value="attn.Wqkv",
    qkv="joined",
    output="attn.Wo",
    attention_norm="attn_norm",
    mlp_norm="mlp_norm",
    activation="mlp.act",
    gate="mlp.Wi",
    up="mlp.Wi",
    down="mlp.Wo",
    activation_field="hidden_activation",
    requires=(*STEADY_ROTARIES, Requirement("classifier_activation", ("gelu",))),
)
