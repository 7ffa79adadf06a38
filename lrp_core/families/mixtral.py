from dataclasses import replace

from lrp_core.families.base import Experts
from lrp_core.families.llama import LLAMA
from lrp_core.families.qwen import QWEN2

#: Mixtures of experts.
MIXTRAL = replace(LLAMA, name="mixtral", experts=Experts())
QWEN2_MOE = replace(
    QWEN2,
    name="qwen2_moe",
    experts=Experts(shared="mlp.shared_expert", shared_gate="mlp.shared_expert_gate"),
)
