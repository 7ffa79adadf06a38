"""T5: v1.0 with ReLU, v1.1 and Flan with a gated GELU. Relative positions are a summand of the attention scores."""

from dataclasses import replace

from closelook.lrp_core.families.base import Decoder, Family, FamilyVariant
from closelook.lrp_core.families.layout import CrossAttention, Requirement
from closelook.lrp_core.records.kinds import ENCODER_DECODER

_CROSS = CrossAttention(
    attention="layer.1.EncDecAttention",
    query="layer.1.EncDecAttention.q",
    key="layer.1.EncDecAttention.k",
    value="layer.1.EncDecAttention.v",
    output="layer.1.EncDecAttention.o",
    norm="layer.1.layer_norm",
)


def _half(stack: str, mlp: str, gated: bool) -> Family:
    """The description of the stack "encoder" or "decoder", whose blocks have their MLP at the path `mlp`."""
    return Family(
        name="t5",
        kind=ENCODER_DECODER,
        blocks=f"{stack}.block",
        token_embedding=f"{stack}.embed_tokens",
        norm="rms",
        norm_order="pre",
        final_norm=f"{stack}.final_layer_norm",
        attention="layer.0.SelfAttention",
        query="layer.0.SelfAttention.q",
        key="layer.0.SelfAttention.k",
        value="layer.0.SelfAttention.v",
        output="layer.0.SelfAttention.o",
        attention_norm="layer.0.layer_norm",
        mlp_norm=f"{mlp}.layer_norm",
        activation=f"{mlp}.DenseReluDense.act",
        gate=f"{mlp}.DenseReluDense.wi_0" if gated else None,
        up=f"{mlp}.DenseReluDense.wi_1" if gated else f"{mlp}.DenseReluDense.wi",
        down=f"{mlp}.DenseReluDense.wo",
        norm_eps="variance_epsilon",
        activation_field="dense_act_fn",
        feed_forward_field="d_ff",
        max_length_field="n_positions",
        relative_positions=True,
        requires=(Requirement("is_encoder_decoder", (True,)),),
    )


def _both(gated: bool) -> Family:
    """The family of T5 with gated MLPs (v1.1) or plain ones (v1.0)."""
    decoder = Decoder(
        family=_half("decoder", "layer.2", gated),
        cross=_CROSS,
        stack="decoder",
    )
    return replace(_half("encoder", "layer.1", gated), decoder=decoder)


T5 = replace(_both(gated=True), variants=(FamilyVariant("is_gated_act", False, _both(gated=False)),))
