from lrp_core.families.images import ImageFamily
from lrp_core.families.requirements import ONE_LABEL
from lrp_core.records.kinds import IMAGE_CLASSIFIER

#: The head reads the class token after the final norm; there is no pooler.
VIT = ImageFamily(
    name="vit",
    kind=IMAGE_CLASSIFIER,
    blocks="vit.layers",
    embeddings="vit.embeddings",
    token_embedding="vit.embeddings.patch_embeddings.projection",
    norm="layer",
    norm_order="pre",
    final_norm="vit.layernorm",
    unembedding="classifier",
    attention="attention",
    query="attention.q_proj",
    key="attention.k_proj",
    value="attention.v_proj",
    output="attention.o_proj",
    attention_norm="layernorm_before",
    mlp_norm="layernorm_after",
    activation="mlp.activation_fn",
    up="mlp.fc1",
    down="mlp.fc2",
    requires=(ONE_LABEL,),
)
