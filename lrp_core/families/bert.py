"""BERT, and families with its layout, described by their differences."""

from dataclasses import replace
from typing import Any

from closelook.lrp_core.families.base import Family
from closelook.lrp_core.families.layout import (
    ABSOLUTE_POSITIONS,
    WHOLE_FEED_FORWARD,
    LabelHead,
    Requirement,
    SameAs,
)
from closelook.lrp_core.records.capabilities import ATTENTION
from closelook.lrp_core.records.kinds import MASKED


def _embeddings(model: str) -> dict[str, Any]:
    """The paths of the embeddings of a base model with this name, as fields of a Family."""
    return {
        "token_embedding": f"{model}.embeddings.word_embeddings",
        "position_embedding": f"{model}.embeddings.position_embeddings",
        "segment_embedding": f"{model}.embeddings.token_type_embeddings",
        "embedding_norm": f"{model}.embeddings.LayerNorm",
    }


BERT = Family(
    name="bert",
    kind=MASKED,
    blocks="bert.encoder.layer",
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
    **_embeddings("bert"),
)
ROBERTA = replace(
    BERT,
    name="roberta",
    blocks="roberta.encoder.layer",
    **_embeddings("roberta"),
    head_dense="lm_head.dense",
    head_norm="lm_head.layer_norm",
    head_activation="gelu",
    label_head=LabelHead("classifier.out_proj", dense="classifier.dense"),
    positions_after_padding=True,
)
#: Embeddings may be narrower than the blocks: embeddings_project, a linear layer, stands between.
ELECTRA = replace(
    BERT,
    name="electra",
    blocks="electra.encoder.layer",
    **_embeddings("electra"),
    embedding_projection="electra.embeddings_project",
    head_dense="generator_predictions.dense",
    head_norm="generator_predictions.LayerNorm",
    head_activation="gelu",
    label_head=LabelHead("classifier.out_proj", dense="classifier.dense", activation="gelu"),
)
#: Norms stand before attention and MLP, each adds to the residual stream, and a norm stands after the blocks. The
#: attention modules compute attention in their `forward`.
MEGATRON_BERT = replace(
    BERT,
    name="megatron-bert",
    blocks="bert.encoder.layer",
    embedding_norm=None,
    norm_order="pre",
    final_norm="bert.encoder.ln",
    attention_norm="attention.ln",
    mlp_norm="ln",
    eager_only=True,
    own_kernel="forward",
)
#: DeBERTa-v2 and v3 (the difference is how they were trained). Their disentangled attention adds scores of relative
#: positions outside of transformers' attention interface, so that nothing reads its weights.
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
    lacks=(ATTENTION,),
    requires=(
        Requirement("position_biased_input", (False,), "their positions are those that attention adds"),
        Requirement("type_vocab_size", (0,), "they have no segments"),
        Requirement("legacy", (True,), "the other head multiplies by the embeddings by itself"),
        Requirement("pooler_hidden_act", ("gelu",)),
        SameAs("embedding_size", "hidden_size", "embed_proj stands between embeddings and blocks"),
    ),
)
