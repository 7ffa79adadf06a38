from dataclasses import replace

from lrp_core.families.llama import LLAMA

MISTRAL = replace(LLAMA, name="mistral")
