from dataclasses import replace

from closelook.lrp_core.families.base import Decoder, Family
from closelook.lrp_core.families.layout import CrossAttention, Requirement, SameAs
from closelook.lrp_core.records.kinds import ENCODER_DECODER

_CROSS = CrossAttention(
    attention="encoder_attn",
    query="encoder_attn.q_proj",
    key="encoder_attn.k_proj",
    value="encoder_attn.v_proj",
    output="encoder_attn.out_proj",
    norm="encoder_attn_layer_norm",
)


def _half(stack: str) -> Family:
    """The description of one of the two stacks, "model.encoder" or "model.decoder"."""
    return Family(
        name="bart",
        kind=ENCODER_DECODER,
        blocks=f"{stack}.layers",
        token_embedding=f"{stack}.embed_tokens",
        position_embedding=f"{stack}.embed_positions",
        embedding_norm=f"{stack}.layernorm_embedding",
        norm="layer",
        norm_order="post",
        output="self_attn.out_proj",
        attention_norm="self_attn_layer_norm",
        mlp_norm="final_layer_norm",
        activation="activation_fn",
        up="fc1",
        down="fc2",
        activation_field="activation_function",
        feed_forward_field="encoder_ffn_dim",
        requires=(
            Requirement("is_encoder_decoder", (True,)),
            SameAs("decoder_attention_heads", "encoder_attention_heads", "heads are laid out on one axis"),
        ),
    )


BART = replace(
    _half("model.encoder"),
    decoder=Decoder(
        family=_half("model.decoder"),
        cross=_CROSS,
        stack="model.decoder",
    ),
)
