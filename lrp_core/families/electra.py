from dataclasses import replace

from lrp_core.families.base import LabelHead
from lrp_core.families.bert import BERT

#: Embeddings may be narrower than the blocks: embeddings_project, a linear layer, stands between.
ELECTRA = replace(
    BERT,
    name="electra",
    blocks="electra.encoder.layer",
    token_embedding="electra.embeddings.word_embeddings",
    position_embedding="electra.embeddings.position_embeddings",
    segment_embedding="electra.embeddings.token_type_embeddings",
    embedding_norm="electra.embeddings.LayerNorm",
    embedding_projection="electra.embeddings_project",
    head_dense="generator_predictions.dense",
    head_norm="generator_predictions.LayerNorm",
    head_activation="gelu",
    label_head=LabelHead("classifier.out_proj", dense="classifier.dense", activation="gelu"),
)
