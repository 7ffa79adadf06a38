"""Tiny random models of every family and random samples for them."""

import copy
import json
from functools import lru_cache
from itertools import cycle

import torch
from transformers import AutoConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES

from closelook.lrp_core import ModelView, random_model
from closelook.lrp_core.opening.model import view_of
from closelook.lrp_core.verification.samples import random_rows

_COMMON = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
_SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_MLP = {"intermediate_size": 24, "max_position_embeddings": 32}
TINY = {
    "bert": {**_COMMON, **_MLP},
    "gpt2": {**_COMMON, **_SPECIAL, "n_inner": 24, "n_positions": 32},
    "llama": {**_COMMON, **_SPECIAL, **_MLP, "num_key_value_heads": 2},
}
#: Families beyond the three of Close Look.
MORE = {
    "roberta": {**_COMMON, **_SPECIAL, **_MLP, "pad_token_id": 1, "max_position_embeddings": 34},
    "distilbert": {
        "vocab_size": 50,
        "dim": 16,
        "n_layers": 2,
        "n_heads": 4,
        "hidden_dim": 24,
        "max_position_embeddings": 32,
        "pad_token_id": 0,
    },
    "electra": {**_COMMON, **_MLP, "embedding_size": 12},
    "megatron-bert": {**_COMMON, **_MLP},
    "modernbert": {
        **_COMMON,
        **_SPECIAL,
        **_MLP,
        "cls_token_id": 1,
        "sep_token_id": 2,
        "global_attn_every_n_layers": 2,
        "local_attention": 6,
    },
    "opt": {**_COMMON, **_SPECIAL, "ffn_dim": 24, "max_position_embeddings": 32, "word_embed_proj_dim": 16},
    "gpt_neo": {
        **_COMMON,
        **_SPECIAL,
        **_MLP,
        "attention_types": [[["local", "global"], 1]],
        "window_size": 3,
    },
    "gpt_neox": {**_COMMON, **_SPECIAL, **_MLP},
    "mistral": {**_COMMON, **_SPECIAL, **_MLP, "num_key_value_heads": 2},
    "qwen2": {**_COMMON, **_SPECIAL, **_MLP, "num_key_value_heads": 2},
    "qwen3": {**_COMMON, **_SPECIAL, **_MLP, "num_key_value_heads": 2, "head_dim": 6},
    "gemma": {**_COMMON, **_SPECIAL, **_MLP, "num_key_value_heads": 2, "head_dim": 6},
    "mixtral": {
        **_COMMON,
        **_SPECIAL,
        **_MLP,
        "num_key_value_heads": 2,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "qwen2_moe": {  # the first block has an MLP
        **_COMMON,
        **_SPECIAL,
        **_MLP,
        "num_key_value_heads": 2,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 22,
        "decoder_sparse_step": 2,
    },
    "gemma2": {
        **_COMMON,
        **_SPECIAL,
        **_MLP,
        "num_key_value_heads": 2,
        "head_dim": 6,
        "query_pre_attn_scalar": 5,
        "sliding_window": 4,
        "attn_logit_softcapping": 1.5,
        "final_logit_softcapping": 2.0,
    },
    "gemma3_text": {
        **_COMMON,
        **_SPECIAL,
        **_MLP,
        "num_key_value_heads": 2,
        "head_dim": 6,
        "query_pre_attn_scalar": 5,
        "sliding_window": 4,
        "sliding_window_pattern": 2,
    },
    "olmo2": {**_COMMON, **_SPECIAL, **_MLP, "num_key_value_heads": 2},
    "phi": {**_COMMON, **_SPECIAL, **_MLP, "num_key_value_heads": 2},
    "phi3": {**_COMMON, **_SPECIAL, **_MLP, "num_key_value_heads": 2},
}
#: Families of which less is described: no rules, no attention weights.
FEWER = {
    "deberta-v2": {
        **_COMMON,
        **_MLP,
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_biased_input": False,
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
        "position_buckets": 4,
        "conv_kernel_size": 3,
    },
}
_T5 = {
    "vocab_size": 50,
    "d_model": 16,
    "d_kv": 6,
    "d_ff": 24,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 10,
    "decoder_start_token_id": 0,
}
#: Encoder-decoders.
BOTH = {
    "t5": {**_T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "bart": {
        **_SPECIAL,
        "vocab_size": 50,
        "d_model": 16,
        "encoder_layers": 2,
        "decoder_layers": 3,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 24,
        "decoder_ffn_dim": 24,
        "max_position_embeddings": 32,
        "decoder_start_token_id": 2,
    },
}
#: T5 v1.0: its output embeddings are its input embeddings, scaled.
T5_RELU = {"feed_forward_proj": "relu", "tie_word_embeddings": True}

#: A picture of 8 x 12 pixels in 6 patches.
IMAGES = {
    "vit": {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 24,
        "image_size": (8, 12),
        "patch_size": (4, 4),
        "num_channels": 2,
        "num_labels": 4,
    },
}


def tiny_config(family: str, **changes):
    fields = (TINY | MORE | FEWER | BOTH | IMAGES)[family] | changes
    if "attention_types" in fields:  # one for each layer
        ((kinds, _),) = fields["attention_types"]
        fields["attention_types"] = [[[kind], 1] for _, kind in zip(range(fields["num_hidden_layers"]), cycle(kinds))]
    return AutoConfig.for_model(family, **fields)


def tiny_model(family: str, dtype: str = "float64", attn: str = "sdpa", seed: int = 0, **changes) -> ModelView:
    """Random weights large enough that every nonlinearity matters; biases and norm weights are random too."""
    made = _made(family, attn, seed, json.dumps(changes, sort_keys=True))
    return view_of(copy.deepcopy(made).to(getattr(torch, dtype)))


@lru_cache(maxsize=64)
def _made(family: str, attn: str, seed: int, changes: str) -> PreTrainedModel:
    """The model in float32, with changes in JSON, of which each test gets a copy: making one takes longer."""
    view = random_model(tiny_config(family, **json.loads(changes)), seed=seed, dtype="float32", attn=attn)
    generator = torch.Generator().manual_seed(seed)
    for parameter in view.model.parameters():
        centre, spread = (parameter.mean(), 0.2) if parameter.dim() == 1 else (0.0, parameter.shape[-1] ** -0.5)
        parameter.copy_(centre + spread * torch.randn(parameter.shape, generator=generator))
    for name, buffer in view.model.named_buffers():
        if name.endswith("bias") and buffer.is_floating_point():  # GPT-Neo calls a mask so
            buffer.copy_(0.2 * torch.randn(buffer.shape, generator=generator))
    return view.model


def tiny_classifier(family: str, labels: int = 3, **changes) -> ModelView:
    """A tiny model with a classifier on top, a regressor where it has one label."""
    architecture = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES[family]
    return tiny_model(family, architectures=[architecture], num_labels=labels, **changes)


ragged_rows = random_rows


def picture_rows(view: ModelView, count: int = 3, seed: int = 0) -> list[dict]:
    """View rows of random pictures."""
    return random_rows(view, (view.max_length,) * count, seed)
