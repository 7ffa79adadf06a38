"""The common description of models around torch's own `nn.TransformerEncoder`."""

from closelook.lrp_core.families.base import Family
from closelook.lrp_core.records.kinds import MASKED

#: The encoder is the module `encoder` of the base model, its norms stand before attention and MLP, and one after the
#: blocks. A description of such models replaces the name and the paths outside of the encoder.
TORCH_ENCODER = Family(
    name="torch-encoder",
    kind=MASKED,
    blocks="encoder.layers",
    token_embedding="embeddings",
    norm="layer",
    norm_order="pre",
    final_norm="encoder.norm",
    attention="self_attn",
    query="self_attn.query",
    key="self_attn.key",
    value="self_attn.value",
    output="self_attn.output",
    attention_norm="norm1",
    mlp_norm="norm2",
    activation="activation",
    up="linear1",
    down="linear2",
    qkv="packed",
    eager_only=True,
    own_kernel="attend",
)
