"""Sizes of tiny models: data of `lrp_core.verification.architectures`, which builds one model of every architecture."""

from __future__ import annotations

from typing import Any

_NAMES = {
    97: "vocab_size src_vocab_size tgt_vocab_size vocab_size_per_layer_input pronunciation_vocab_size shape_vocab_size"
    " entity_vocab_size unpadded_vocab_size",
    64: "max_position_embeddings n_positions n_ctx context_length max_seq_len max_encoder_position_embeddings"
    " max_decoder_position_embeddings max_2d_position_embeddings",
    40: "intermediate_size ffn_dim encoder_ffn_dim decoder_ffn_dim ffn_hidden_size d_ff dff dim_ff hidden_dim n_inner"
    " intermediate_size_mlp dense_intermediate_size feed_forward_size",
    32: "hidden_size d_model n_embd dim emb_dim embedding_size word_embed_proj_dim input_embedding_size lru_width"
    " output_embedding_size adapter_out_dim",
    24: "moe_intermediate_size shared_expert_intermediate_size expert_ffn_hidden_size shared_intermediate_size"
    " moe_shared_expert_intermediate_size shared_experts_intermediate_size entity_emb_size pronunciation_embed_dim"
    " shape_embed_dim",
    16: "q_lora_rank kv_lora_rank o_lora_rank sliding_window local_attention attention_window_size index_topk"
    " sliding_window_size window_size image_size hidden_size_per_layer_input adapter_rank",
    8: "head_dim v_head_dim qk_nope_head_dim qk_rope_head_dim d_kv kv_channels d_head attention_head_size dim_head"
    " mamba_n_heads mamba_d_head mamba_d_state mamba_num_heads mamba_head_dim ssm_state_size state_size patch_size"
    " linear_key_head_dim linear_value_head_dim linear_head_dim index_head_dim swa_head_dim router_hidden_size d_rel"
    " relative_attention_num_buckets rotary_dim global_head_dim",
    4: "num_attention_heads num_heads n_head n_heads attention_heads encoder_attention_heads decoder_attention_heads"
    " num_encoder_attention_heads num_decoder_attention_heads num_experts n_routed_experts num_local_experts"
    " moe_num_experts swa_num_attention_heads linear_num_value_heads linear_num_heads index_n_heads zero_expert_num"
    " laurel_rank n_groups attention_window",
    2: "num_hidden_layers num_layers n_layer n_layers encoder_layers decoder_layers num_encoder_layers"
    " num_decoder_layers num_key_value_heads num_experts_per_tok moe_topk moe_top_k moe_k linear_num_key_heads"
    " swa_num_key_value_heads depth eos_token_id num_sparse_encoder_layers num_sparse_decoder_layers kv_n_heads",
    1: "bos_token_id decoder_start_token_id n_group topk_group first_k_dense_replace num_dense_layers mamba_n_groups"
    " mamba_ngroups n_shared_experts",
    0: "pad_token_id pad_index",
}
#: By the name of a config's field: its value in tiny models.
SIZES: dict[str, int] = {name: size for size, names in _NAMES.items() for name in names.split()}

#: By the name of a config's field: other fields that a config with that field needs.
NEEDS: dict[str, dict[str, Any]] = {"kv_lora_rank": {"num_key_value_heads": 4}}

_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
#: By the class of a config: what differs in that architecture.
OVERRIDES: dict[str, dict[str, Any]] = {
    "BambaConfig": {"attn_layer_indices": [1]},
    "BltConfig": {"encoder_hash_byte_group_vocab": 97, "max_position_embeddings": 64},
    "BltLocalDecoderConfig": {"hidden_size_global": 32, "cross_attn_k": 1},
    "BltLocalEncoderConfig": {"hidden_size_global": 32, "cross_attn_k": 1},
    "CohereCompassTextConfig": {
        "layer_types": ["full_attention"] * 2,
        "rope_parameters": {"full_attention": {**_ROPE, "mrope_section": [2, 1, 1]}},
    },
    "DbrxAttentionConfig": {"rope_theta": 10000.0, "clip_qkv": 8.0},
    "Dots3NoteTextConfig": {"num_key_value_heads": 4},
    "EsmcConfig": {"num_key_value_heads": 4},
    "FalconH1Config": {"mamba_d_ssm": 64},
    "FunnelConfig": {"block_sizes": [1, 1], "d_inner": 40},
    "GPTNeoConfig": {"attention_types": [[["global", "local"], 1]], "window_size": 3},
    "Gemma3nTextConfig": {
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "altup_num_inputs": 2,
    },
    "JambaConfig": {"attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False},
    "Lfm2MoeConfig": {"layer_types": ["conv", "full_attention"]},
    "Mamba2Config": {"expand": 1},
    "MPNetConfig": {"relative_attention_num_buckets": 32},
    "MobileBertConfig": {"embedding_size": 16, "intra_bottleneck_size": 24},
    "NeoMMEConfig": {"head_dim": 16, "embedding_rank": 16},
    "PerceiverConfig": {"d_latents": 32, "num_latents": 8, "num_self_attends_per_block": 2},
    "Qwen4ExpTextConfig": {
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 8,
        "indexer_budget": 8,
        "indexer_compress_ratio": 2,
    },
    "ReformerConfig": {
        "attn_layers": ["local", "lsh"],
        "axial_pos_embds": False,
        "is_decoder": True,
        "num_buckets": 2,
        "lsh_attn_chunk_length": 8,
        "local_attn_chunk_length": 8,
    },
    "XmodConfig": {"default_language": "en_XX"},
    "Zamba2Config": {"num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid"] * 2},
    "ZambaConfig": {"num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid"] * 2},
    "ZayaConfig": {"num_experts_per_tok": 1},
}
