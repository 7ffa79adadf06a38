from dataclasses import replace

from lrp_core.families.llama import LLAMA

QWEN2 = replace(LLAMA, name="qwen2")
QWEN3 = replace(LLAMA, name="qwen3", query_norm="self_attn.q_norm", key_norm="self_attn.k_norm")
