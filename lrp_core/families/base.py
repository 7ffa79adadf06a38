"""What must be known about a model family, as frozen data: where its parts are and how they are laid out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from lrp_core.capabilities import (
    ATTENTION,
    DELETION,
    GRADIENTS,
    MASKING,
    POST_NORM,
    PRE_NORM,
    RULES,
    UNCENTRED,
    Capability,
)
from lrp_core.kinds import Kind


@dataclass(frozen=True)
class Family:
    """Paths of modules: from the model's root for the model's parts, from a block for the block's parts."""

    name: str  # transformers' `config.model_type`
    kind: Kind

    # model
    blocks: str
    token_embedding: str
    norm: Literal["layer", "rms"]
    norm_order: Literal["pre", "post"]  # where a block normalises: its inputs, or the sums on the residual stream
    final_norm: str | None = None
    position_embedding: str | None = None  # learned positions, added to the token embedding
    segment_embedding: str | None = None  # segment 0 is added to the token embedding
    embedding_norm: str | None = None
    head_dense: str | None = None  # head transform of masked models: dense, activation, norm
    head_norm: str | None = None

    # block
    attention: str = "self_attn"
    query: str = "self_attn.q_proj"
    key: str = "self_attn.k_proj"
    value: str = "self_attn.v_proj"
    output: str = "self_attn.o_proj"
    query_norm: str | None = None
    key_norm: str | None = None
    attention_norm: str = "input_layernorm"
    mlp_norm: str = "post_attention_layernorm"
    activation: str = "mlp.act_fn"
    gate: str | None = None  # gated MLPs: activation(gate(x)) * up(x)
    up: str = "mlp.up_proj"
    down: str = "mlp.down_proj"

    # layouts
    qkv: Literal["separate", "thirds", "per_head"] = "separate"  # fused: [q | k | v], or [q | k | v] head by head
    transposed: bool = False  # weights are [in, out] (Conv1D)
    grouped: bool = False  # `config.num_key_value_heads` key-value heads
    norm_eps: str = "eps"  # attribute of the norm modules
    norm_offset: float = 0.0  # the norm multiplies by offset + weight
    activation_field: str = "hidden_act"  # field of the config that names the activation
    feed_forward_field: str = "intermediate_size"  # fields of the config that hold these sizes
    max_length_field: str = "max_position_embeddings"
    position_shift: int = 0  # rows of the position embedding before position 0, which the module skips by itself
    positions_after_padding: bool = False  # position ids start at `config.pad_token_id + 1`
    parallel_field: str | None = None  # field of the config: attention and MLP read the same residual stream
    requires: tuple[tuple[str, Any], ...] = ()  # (field of the config, value it must have)

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What methods may need of a model and these models have."""
        of_norms = {PRE_NORM if self.norm_order == "pre" else POST_NORM} | (
            {UNCENTRED} if self.norm == "rms" else set()
        )
        ways = {"mask": MASKING, "delete": DELETION}
        of_kind = {ways[way] for way in self.kind.perturbations if way in ways}
        return frozenset({GRADIENTS, RULES, ATTENTION} | of_norms | of_kind)
