from dataclasses import replace

from lrp_core.families.base import Correction, LabelHead
from lrp_core.families.bert import BERT

ROBERTA = replace(
    BERT,
    name="roberta",
    blocks="roberta.encoder.layer",
    token_embedding="roberta.embeddings.word_embeddings",
    position_embedding="roberta.embeddings.position_embeddings",
    segment_embedding="roberta.embeddings.token_type_embeddings",
    embedding_norm="roberta.embeddings.LayerNorm",
    head_dense="lm_head.dense",
    head_norm="lm_head.layer_norm",
    head_activation="gelu",
    label_head=LabelHead("classifier.out_proj", dense="classifier.dense"),
    positions_after_padding=True,
    corrections=(Correction("hidden_act", ("gelu", "gelu_python"), " with a head of GELU"),),
)
