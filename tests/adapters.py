"""LoRA adapters with random weights, for tiny models."""

import warnings
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model

from closelook.lrp_core import ModelView

TARGETS = {
    "gpt2": {"target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True},
    "bert": {"target_modules": ["query", "value", "dense"]},
    "llama": {"target_modules": ["q_proj", "v_proj", "down_proj"]},
}


def adapted(folder: Path, view: ModelView, seed: int = 1, **settings) -> None:
    """An adapter with random weights for the model, which is left as it was."""
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what peft asks of transformers, and of embeddings that are tied or saved
        torch.manual_seed(seed)
        family = view.family.name
        chosen = LoraConfig(r=4, lora_alpha=8, init_lora_weights=False, **(TARGETS.get(family, {}) | settings))
        wrapped = get_peft_model(view.model, chosen, autocast_adapter_dtype=False)
        wrapped.save_pretrained(folder)
        wrapped.unload()
