from dataclasses import replace

from lrp_core.capabilities import ATTENTION, RULES
from lrp_core.families.base import LabelHead, Requirement, SameAs
from lrp_core.families.bert import BERT

#: DeBERTa-v2 and v3 (the difference is how they were trained). Their disentangled attention adds scores of relative
#: positions outside of transformers' attention interface: nothing reads its weights, and no rule covers it.
DEBERTA = replace(
    BERT,
    name="deberta-v2",
    blocks="deberta.encoder.layer",
    token_embedding="deberta.embeddings.word_embeddings",
    position_embedding=None,
    segment_embedding=None,
    embedding_norm="deberta.embeddings.LayerNorm",
    label_head=LabelHead("classifier", dense="pooler.dense", activation="gelu"),
    query="attention.self.query_proj",
    key="attention.self.key_proj",
    value="attention.self.value_proj",
    lacks=(ATTENTION, RULES),
    requires=(
        Requirement("position_biased_input", (False,), "their positions are those that attention adds"),
        Requirement("type_vocab_size", (0,), "they have no segments"),
        Requirement("legacy", (True,), "the other head multiplies by the embeddings by itself"),
        Requirement("pooler_hidden_act", ("gelu",)),
        SameAs("embedding_size", "hidden_size", "embed_proj stands between embeddings and blocks"),
    ),
)
