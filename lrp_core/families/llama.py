"""LLaMA, and families with its layout, described by their differences."""

from dataclasses import replace

from closelook.lrp_core.families.base import Family
from closelook.lrp_core.families.layout import STEADY_ROTARIES, STEADY_ROTARY, Experts, LabelHead, Requirement
from closelook.lrp_core.records.kinds import CAUSAL

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
MISTRAL = replace(LLAMA, name="mistral")
QWEN2 = replace(LLAMA, name="qwen2")
QWEN3 = replace(LLAMA, name="qwen3", query_norm="self_attn.q_norm", key_norm="self_attn.k_norm")
#: Mixtures of experts.
MIXTRAL = replace(LLAMA, name="mixtral", experts=Experts())
QWEN2_MOE = replace(
    QWEN2,
    name="qwen2_moe",
    experts=Experts(shared="mlp.shared_expert", shared_gate="mlp.shared_expert_gate"),
)
GEMMA = replace(LLAMA, name="gemma", norm_eps="eps", norm_offset=1.0)
#: Blocks also normalise what attention and MLP put out; scores and logits have soft caps.
GEMMA2 = replace(
    GEMMA,
    name="gemma2",
    mlp_norm="pre_feedforward_layernorm",
    added_norms=("post_attention_layernorm", "post_feedforward_layernorm"),
    activation_field="hidden_activation",
    logit_cap_field="final_logit_softcapping",
    eager_only=True,
)
#: The text models of Gemma 3, and those of its pictures' models by themselves.
GEMMA3 = replace(
    GEMMA2,
    name="gemma3_text",
    query_norm="self_attn.q_norm",
    key_norm="self_attn.k_norm",
    eager_only=False,
    requires=(
        *STEADY_ROTARIES,
        Requirement("attn_logit_softcapping", (None,), "transformers leaves the cap out without a word"),
    ),
)
#: Nothing is normalised before attention and MLP, but what they put out, queries and keys are.
OLMO2 = replace(
    LLAMA,
    name="olmo2",
    norm_order="added",
    query_norm="self_attn.q_norm",
    key_norm="self_attn.k_norm",
    attention_norm="post_attention_layernorm",
    mlp_norm="post_feedforward_layernorm",
)
