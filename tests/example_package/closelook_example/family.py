"""A model family: GPT-2's modules under another `model_type`."""

from dataclasses import replace

from closelook.lrp_core.families.gpt2 import GPT2

RENAMED = replace(GPT2, name="gpt2-renamed", classes="closelook_example.modeling")
