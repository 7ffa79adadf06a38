"""Fields of each family's config that change what its models compute, and the values that each is tried with."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

Options = Mapping[str, Sequence[Any]]


def rotary(kind: str, **more: Any) -> dict[str, Any]:
    """Parameters of rotary positions, trained on 8 tokens."""
    fields = {"rope_type": kind, "rope_theta": 100.0}
    if kind != "default":
        fields["factor"] = 4.0
    if kind in ("llama3", "yarn"):
        fields["original_max_position_embeddings"] = 8
    if kind == "llama3":
        fields |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    return fields | more


#: One name of each function that families use.
ACTIVATIONS = ("gelu", "gelu_new", "silu", "relu", "relu2", "tanh")
#: By an option that is no field of a config: what the head predicts (tokens, or so many labels).
HEAD = "head"
_TIED = {"tie_word_embeddings": (True, False)}
_HEADS = {HEAD: ("tokens", 3, 1)}
_ANY = {"_attn_implementation": ("sdpa", "eager")}
_STEADY = tuple(map(rotary, ("default", "linear", "llama3", "yarn")))
_ROPE = {"rope_parameters": _STEADY}
_GROUPS = {"num_key_value_heads": (1, 2, 4)}
_BERT = {
    **_ANY,
    **_TIED,
    **_HEADS,
    "hidden_act": ACTIVATIONS,
    "type_vocab_size": (1, 2),
    "layer_norm_eps": (1e-12, 0.1),
    "num_attention_heads": (1, 4),
}
_GPT2 = {
    **_ANY,
    **_TIED,
    **_HEADS,
    "activation_function": ACTIVATIONS,
    "layer_norm_epsilon": (1e-5, 0.1),
}
_LLAMA = {
    **_ANY,
    **_TIED,
    **_HEADS,
    **_ROPE,
    **_GROUPS,
    "hidden_act": ACTIVATIONS,
    "rms_norm_eps": (1e-6, 0.1),
}
_BIASES = {"attention_bias": (False, True)}
_WIDTH = {"head_dim": (4, 6)}
_WINDOW = {"sliding_window": (None, 3)}
_LAYERS = {"layer_types": (["full_attention"] * 2, ["sliding_attention"] * 2, ["sliding_attention", "full_attention"])}
_GEMMA2 = {
    **{name: values for name, values in _LLAMA.items() if name != "hidden_act"},
    **_BIASES,
    **_WIDTH,
    **_LAYERS,
    "hidden_activation": ACTIVATIONS,
    "sliding_window": (2, 4),
    "query_pre_attn_scalar": (5, 16),
    "final_logit_softcapping": (None, 2.0),
}
_PARTIAL = tuple(rotary(kind, partial_rotary_factor=0.5) for kind in ("default", "linear", "yarn"))


def _by_layer(*kinds: str) -> tuple[Any, ...]:
    return tuple({"full_attention": rotary(kind), "sliding_attention": rotary("default")} for kind in kinds)


#: Values that are covered.
OPTIONS: Mapping[str, Options] = {
    "bert": _BERT,
    "roberta": {**_BERT, "pad_token_id": (1, 0)},
    "distilbert": {
        **_ANY,
        **_TIED,
        **_HEADS,
        "activation": ACTIVATIONS,
        "sinusoidal_pos_embds": (False, True),
        "n_heads": (1, 4),
    },
    "megatron-bert": _BERT,
    "electra": {**_BERT, "embedding_size": (12, 16)},
    "modernbert": {
        **_ANY,
        **_TIED,
        **_HEADS,
        **_BIASES,
        "hidden_activation": ACTIVATIONS,
        "norm_bias": (False, True),
        "norm_eps": (1e-5, 0.1),
        "mlp_bias": (False, True),
        "decoder_bias": (False, True),
        "classifier_bias": (False, True),
        **_LAYERS,
        "local_attention": (4, 6),
        "rope_parameters": _by_layer("default", "linear", "llama3", "yarn"),
        "sparse_prediction": (False, True),
    },
    "deberta-v2": {
        **_TIED,
        **_HEADS,
        "hidden_act": (*ACTIVATIONS, "mish"),
        "relative_attention": (True, False),
        "pos_att_type": (["p2c", "c2p"], ["c2p"], ["p2c"], []),
        "share_att_key": (True, False),
        "norm_rel_ebd": ("layer_norm", "none"),
        "position_buckets": (4, -1),
        "max_relative_positions": (-1, 6),
        "conv_kernel_size": (0, 3),
        "conv_act": ("tanh", "gelu"),
        "layer_norm_eps": (1e-7, 0.1),
    },
    "gpt2": {
        **_GPT2,
        "n_inner": (None, 24),
        "n_head": (1, 4),
        "scale_attn_weights": (True, False),
        "scale_attn_by_inverse_layer_idx": (False, True),
    },
    "opt": {
        **_ANY,
        **_TIED,
        **_HEADS,
        "activation_function": ACTIVATIONS,
        "enable_bias": (True, False),
        "num_attention_heads": (1, 4),
    },
    "gpt_neo": {
        **_GPT2,
        "intermediate_size": (None, 24),
        "attention_types": ([[["local", "global"], 1]], [[["global"], 1]], [[["local"], 1]]),
        "window_size": (2, 3),
    },
    "gpt_neox": {
        **_ANY,
        **_TIED,
        **_HEADS,
        **_BIASES,
        "hidden_act": ACTIVATIONS,
        "layer_norm_eps": (1e-5, 0.1),
        "use_parallel_residual": (True, False),
        "rope_parameters": (*_STEADY, *_PARTIAL),
    },
    "llama": {**_LLAMA, **_BIASES, **_WIDTH, "mlp_bias": (False, True)},
    "mistral": {**_LLAMA, **_WIDTH, **_WINDOW},
    "qwen2": {**_LLAMA, **_LAYERS, "use_sliding_window": (True,), "sliding_window": (3, 4)},
    "qwen3": {**_LLAMA, **_BIASES, **_WIDTH, **_LAYERS, "use_sliding_window": (True,), "sliding_window": (3, 4)},
    "gemma": {**_LLAMA, **_BIASES, **_WIDTH},
    "gemma2": {**_GEMMA2, "attn_logit_softcapping": (None, 1.5)},
    "gemma3_text": {**_GEMMA2, "rope_parameters": _by_layer("default", "linear", "llama3", "yarn")},
    "mixtral": {**_LLAMA, **_WIDTH, **_WINDOW, "num_experts_per_tok": (1, 2)},
    "qwen2_moe": {
        **_LLAMA,
        **_LAYERS,
        "use_sliding_window": (True,),
        "sliding_window": (3, 4),
        "qkv_bias": (True, False),
        "num_experts_per_tok": (1, 2),
        "norm_topk_prob": (False, True),
        "decoder_sparse_step": (1, 2),
        "mlp_only_layers": ([], [1]),
    },
    "olmo2": {**_LLAMA, **_BIASES},
    "phi": {
        **_ANY,
        **_TIED,
        **_HEADS,
        **_GROUPS,
        "hidden_act": ACTIVATIONS,
        "layer_norm_eps": (1e-5, 0.1),
        "rope_parameters": (*_STEADY, *_PARTIAL),
    },
    "phi3": {**_LLAMA, **_WINDOW, "rope_parameters": (rotary("default"), rotary("default", partial_rotary_factor=0.5))},
    "t5": {
        **_ANY,
        **_TIED,
        "feed_forward_proj": tuple(f"{gate}{name}" for name in ACTIVATIONS for gate in ("", "gated-")),
        "scale_decoder_outputs": (False, True),
        "num_decoder_layers": (1, 2, 3),
        "d_kv": (4, 6),
        "layer_norm_epsilon": (1e-6, 0.1),
        "relative_attention_num_buckets": (4, 8),
        "relative_attention_max_distance": (6, 10),
    },
    "bart": {
        **_ANY,
        **_TIED,
        "activation_function": ACTIVATIONS,
        "scale_embedding": (False, True),
        "encoder_layers": (1, 2),
        "decoder_layers": (1, 2),
        "encoder_ffn_dim": (20, 24),
        "decoder_ffn_dim": (20, 24),
    },
    "vit": {
        **_ANY,
        "hidden_act": ACTIVATIONS,
        "qkv_bias": (True, False),
        "layer_norm_eps": (1e-12, 0.1),
        "num_channels": (1, 3),
        "image_size": (8, [8, 12]),
        "patch_size": (4, [2, 4]),
        "num_labels": (2, 4),
        "num_attention_heads": (1, 4),
    },
}
_NOT_STEADY = {
    "rope_parameters": (
        rotary("dynamic"),
        rotary("longrope", short_factor=[1.0] * 2, long_factor=[4.0] * 2, original_max_position_embeddings=16),
        rotary("proportional", partial_rotary_factor=0.5),
    )
}
_NOT_STEADY_BY_LAYER = {
    "rope_parameters": (
        {"full_attention": rotary("dynamic"), "sliding_attention": rotary("default")},
        {"full_attention": rotary("default"), "sliding_attention": rotary("dynamic")},
    )
}
_RELATIVE = {"position_embedding_type": ("relative_key", "relative_key_query"), "chunk_size_feed_forward": (1,)}
_DECODER = {**_RELATIVE, "is_decoder": (True,)}
_AHEAD = {"is_causal": (False,)}
_BOTH_WAYS = {**_AHEAD, "use_bidirectional_attention": (True,)}
_CAUSAL_ROTARY = {**_AHEAD, **_NOT_STEADY}
#: Values that are not covered, and refused.
REFUSED: Mapping[str, Options] = {
    "bert": _DECODER,
    "roberta": _DECODER,
    "distilbert": {"chunk_size_feed_forward": (1,)},
    "megatron-bert": _DECODER,
    "electra": _DECODER,
    "modernbert": {**_NOT_STEADY_BY_LAYER, "classifier_activation": ("silu",)},
    "deberta-v2": {
        "position_biased_input": (True,),
        "type_vocab_size": (2,),
        "legacy": (False,),
        "pooler_hidden_act": ("tanh",),
        "embedding_size": (12,),
    },
    "gpt2": {**_AHEAD, "add_cross_attention": (True,), "reorder_and_upcast_attn": (True,)},
    "opt": {
        **_AHEAD,
        "do_layer_norm_before": (False,),
        "_remove_final_layer_norm": (True,),
        "layer_norm_elementwise_affine": (False,),
        "word_embed_proj_dim": (8,),
    },
    "gpt_neo": _AHEAD,
    **dict.fromkeys(("gpt_neox", "llama", "mistral", "qwen2", "qwen3", "qwen2_moe", "olmo2"), _CAUSAL_ROTARY),
    "mixtral": {**_AHEAD, "rope_parameters": (rotary("dynamic"),)},
    "gemma": {**_BOTH_WAYS, **_NOT_STEADY},
    "gemma2": {**_BOTH_WAYS, **_NOT_STEADY},
    "gemma3_text": {**_BOTH_WAYS, **_NOT_STEADY_BY_LAYER, "attn_logit_softcapping": (1.5,)},
    "phi": {**_CAUSAL_ROTARY, "qk_layernorm": (True,)},
    "phi3": _AHEAD,  # its config refuses the other kinds of rotary positions itself
    "t5": {},
    "bart": {"decoder_attention_heads": (2,)},
    "vit": {"problem_type": ("multi_label_classification",)},
}
#: Refused of models with labels.
REFUSED_WITH_LABELS: Mapping[str, Options] = {
    **{name: {"problem_type": ("multi_label_classification",)} for name in OPTIONS if HEAD in OPTIONS[name]},
    "modernbert": {"classifier_pooling": ("mean",)},
}
#: Fields that change no function: training, sizes, ids of tokens, and what others of the fields above say again.
INERT = frozenset(
    (
        *(
            "vocab_size",
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "intermediate_size",
            "embedding_size",
        ),
        *("n_embd", "n_layer", "n_positions", "dim", "n_layers", "hidden_dim", "num_layers", "num_heads", "d_model"),
        *("d_ff", "ffn_dim", "max_position_embeddings", "num_experts", "num_local_experts", "moe_intermediate_size"),
        *(
            "shared_expert_intermediate_size",
            "head_dim",
            "pooler_hidden_size",
            "pooler_output_size",
            "max_window_layers",
        ),
        *("attention_layers", "_sliding_window_pattern", "sliding_window_pattern", "global_attn_every_n_layers"),
        *("dense_act_fn", "is_gated_act", "encoder_attention_heads", "original_max_position_embeddings"),
        *("bos_token_id", "eos_token_id", "pad_token_id", "cls_token_id", "sep_token_id", "decoder_start_token_id"),
        *("forced_eos_token_id", "use_cache", "initializer_range", "initializer_factor", "initializer_cutoff_factor"),
        *(
            "init_std",
            "output_router_logits",
            "router_aux_loss_coef",
            "router_jitter_noise",
            "sparse_pred_ignore_index",
        ),
        *("deterministic_flash_attn", "pretraining_tp", "encoder_stride", "pooler_act", "is_decoder", "layerdrop"),
        *("encoder_layerdrop", "decoder_layerdrop", "add_cross_attention", "summary_type", "summary_use_proj"),
        *("summary_activation", "summary_proj_to_labels"),
    )
)


def pairwise(options: Options) -> Iterator[dict[str, Any]]:
    """Settings of all options, such that any two values of two options occur together in at least one."""
    left = {
        frozenset(((a, i), (b, j)))
        for a, b in combinations(options, 2)
        for i in range(len(options[a]))
        for j in range(len(options[b]))
    }
    ranks = {pair: rank for rank, pair in enumerate(sorted(left, key=sorted))}
    while left:
        chosen = dict(min(left, key=ranks.__getitem__))
        for name in options:
            if name not in chosen:
                gains = [
                    sum(frozenset(((name, i), other)) in left for other in chosen.items())
                    for i in range(len(options[name]))
                ]
                chosen[name] = gains.index(max(gains))
        left.difference_update(map(frozenset, combinations(chosen.items(), 2)))
        yield {name: options[name][at] for name, at in chosen.items()}
