from dataclasses import replace

from lrp_core.families.base import STEADY_ROTARIES, Requirement
from lrp_core.families.llama import LLAMA

GEMMA = replace(LLAMA, name="gemma", norm_eps="eps", norm_offset=1.0)
#: Blocks also normalise what attention and MLP put out; scores and logits have soft caps.
GEMMA2 = replace(
    GEMMA,
    name="gemma2",
    mlp_norm="pre_feedforward_layernorm",
    added_norms=("post_attention_layernorm", "post_feedforward_layernorm"),
    activation_field="hidden_activation",
    logit_cap_field="final_logit_softcapping",
    score_cap_field="attn_logit_softcapping",
    eager_only=True,
)
#: The text models of Gemma 3, and those of its pictures' models by themselves.
GEMMA3 = replace(
    GEMMA2,
    name="gemma3_text",
    query_norm="self_attn.q_norm",
    key_norm="self_attn.k_norm",
    score_cap_field=None,
    eager_only=False,
    requires=(
        *STEADY_ROTARIES,
        Requirement("attn_logit_softcapping", (None,), "transformers leaves the cap out without a word"),
    ),
)
