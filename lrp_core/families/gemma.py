from dataclasses import replace

from lrp_core.families.llama import LLAMA

GEMMA = replace(LLAMA, name="gemma", norm_eps="eps", norm_offset=1.0)
