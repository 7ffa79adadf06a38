from lrp_core.families.base import STEADY_ROTARY, Family, LabelHead
from lrp_core.kinds import CAUSAL

LLAMA = Family(
    name="llama",
    kind=CAUSAL,
    blocks="model.layers",
    token_embedding="model.embed_tokens",
    norm="rms",
    norm_order="pre",
    final_norm="model.norm",
    label_head=LabelHead("score"),
    gate="mlp.gate_proj",
    grouped=True,
    norm_eps="variance_epsilon",
    requires=(STEADY_ROTARY,),
)
