from lrp_core.families.base import ABSOLUTE_POSITIONS, WHOLE_FEED_FORWARD, Family, LabelHead, Requirement
from lrp_core.kinds import MASKED

BERT = Family(
    name="bert",
    kind=MASKED,
    blocks="bert.encoder.layer",
    token_embedding="bert.embeddings.word_embeddings",
    position_embedding="bert.embeddings.position_embeddings",
    segment_embedding="bert.embeddings.token_type_embeddings",
    embedding_norm="bert.embeddings.LayerNorm",
    norm="layer",
    norm_order="post",
    head_dense="cls.predictions.transform.dense",
    head_norm="cls.predictions.transform.LayerNorm",
    label_head=LabelHead("classifier", dense="bert.pooler.dense"),
    attention="attention.self",
    query="attention.self.query",
    key="attention.self.key",
    value="attention.self.value",
    output="attention.output.dense",
    attention_norm="attention.output.LayerNorm",
    mlp_norm="output.LayerNorm",
    activation="intermediate.intermediate_act_fn",
    up="intermediate.dense",
    down="output.dense",
    requires=(Requirement("is_decoder", (False,)), WHOLE_FEED_FORWARD, ABSOLUTE_POSITIONS),
)
