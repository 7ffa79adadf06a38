from closelook.lrp_core.families.base import Family
from closelook.lrp_core.families.layout import WHOLE_FEED_FORWARD, LabelHead
from closelook.lrp_core.records.kinds import MASKED

DISTILBERT = Family(
    name="distilbert",
    kind=MASKED,
    blocks="distilbert.transformer.layer",
    token_embedding="distilbert.embeddings.word_embeddings",
    position_embedding="distilbert.embeddings.position_embeddings",
    embedding_norm="distilbert.embeddings.LayerNorm",
    norm="layer",
    norm_order="post",
    head_dense="vocab_transform",
    head_norm="vocab_layer_norm",
    label_head=LabelHead("classifier", dense="pre_classifier", activation="relu"),
    attention="attention",
    query="attention.q_lin",
    key="attention.k_lin",
    value="attention.v_lin",
    output="attention.out_lin",
    attention_norm="sa_layer_norm",
    mlp_norm="output_layer_norm",
    activation="ffn.activation",
    up="ffn.lin1",
    down="ffn.lin2",
    activation_field="activation",
    feed_forward_field="hidden_dim",
    requires=(WHOLE_FEED_FORWARD,),
)
