"""The model families, found by transformers' `config.model_type`. A new family is one file and one line here.

Installed packages add families through the entry points `closelook.families`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lrp_core.families.base import Family
from lrp_core.families.bert import BERT
from lrp_core.families.gemma import GEMMA
from lrp_core.families.gpt2 import GPT2
from lrp_core.families.gpt_neox import GPT_NEOX
from lrp_core.families.llama import LLAMA
from lrp_core.families.mistral import MISTRAL
from lrp_core.families.opt import OPT
from lrp_core.families.qwen import QWEN2, QWEN3
from lrp_core.families.roberta import ROBERTA
from lrp_core.plugins import Extended
from lrp_core.registry import Registry
from lrp_core.types import UnsupportedModel

if TYPE_CHECKING:
    from transformers import PretrainedConfig

FAMILIES: Extended[Family] = Extended(
    Registry("family", BERT, ROBERTA, GPT2, OPT, GPT_NEOX, LLAMA, MISTRAL, QWEN2, QWEN3, GEMMA),
    "closelook.families",
    Family,
)


def family_of(config: PretrainedConfig) -> Family:
    """Raises UnsupportedModel, listing what is supported, for an unknown family or a variant that no rule covers."""
    if config.model_type not in FAMILIES:
        raise UnsupportedModel(f"no family describes {config.model_type!r} models; supported: {', '.join(FAMILIES)}")
    family = FAMILIES[config.model_type]
    for field, value in family.requires:
        if getattr(config, field) != value:
            raise UnsupportedModel(f"{family.name} models are supported with {field}={value} only")
    return family
