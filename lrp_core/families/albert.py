from dataclasses import replace

from lrp_core.families.base import ABSOLUTE_POSITIONS, WHOLE_FEED_FORWARD, LabelHead, Requirement
from lrp_core.families.bert import BERT

#: Layers share the weights of a block; each gets modules of its own around them, so that layers can be told apart.
#: Embeddings are narrower than the blocks: embedding_hidden_mapping_in, a linear layer, stands between.
ALBERT = replace(
    BERT,
    name="albert",
    blocks="albert.encoder.albert_layer_groups",
    group_field="num_hidden_groups",
    token_embedding="albert.embeddings.word_embeddings",
    position_embedding="albert.embeddings.position_embeddings",
    segment_embedding="albert.embeddings.token_type_embeddings",
    embedding_norm="albert.embeddings.LayerNorm",
    embedding_projection="albert.encoder.embedding_hidden_mapping_in",
    head_dense="predictions.dense",
    head_norm="predictions.LayerNorm",
    label_head=LabelHead("classifier", dense="albert.pooler"),
    attention="albert_layers.0.attention",
    query="albert_layers.0.attention.query",
    key="albert_layers.0.attention.key",
    value="albert_layers.0.attention.value",
    output="albert_layers.0.attention.dense",
    attention_norm="albert_layers.0.attention.LayerNorm",
    mlp_norm="albert_layers.0.full_layer_layer_norm",
    activation="albert_layers.0.activation",
    up="albert_layers.0.ffn",
    down="albert_layers.0.ffn_output",
    requires=(
        Requirement("inner_group_num", (1,), "a group of several layers is no block"),
        WHOLE_FEED_FORWARD,
        ABSOLUTE_POSITIONS,
    ),
)
