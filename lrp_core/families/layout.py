"""Parts of the description of a model family: paths of modules, layouts of weights, fields of the config that matter.

Paths lead from the model's root to the parts of the model, and from a block to the parts of the block.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Literal

from lrp_core.families.requirements import Requirement


@dataclass(frozen=True, kw_only=True)
class EmbeddingLayout:
    """The embeddings of tokens, positions and segments, and how many tokens they reach."""

    token_embedding: str
    position_embedding: str | None = None  # learned positions, added to the token embedding
    segment_embedding: str | None = None  # segment 0 is added to the token embedding
    embedding_norm: str | None = None
    embedding_projection: str | None = None  # a linear layer behind them, where a config makes them narrower
    max_length_field: str = "max_position_embeddings"  # field of the config
    position_shift: int = 0  # rows of the position embedding before position 0, which the module skips by itself
    relative_positions: bool = False  # texts of any length
    positions_after_padding: bool = False  # position ids start at `config.pad_token_id + 1`

    def most_tokens(self, config: Any) -> int:
        """Most tokens that a sample of a model with this config may have."""
        if self.relative_positions:
            return sys.maxsize
        return config.max_position_embeddings - (config.pad_token_id + 1 if self.positions_after_padding else 0)


@dataclass(frozen=True, kw_only=True)
class NormLayout:
    """The norms, by kind and by where they stand."""

    norm: Literal["layer", "rms"]
    # where the norms of attention and MLP stand: before them, behind the sums, or behind each before it is added
    norm_order: Literal["pre", "post", "added"]
    final_norm: str | None = None
    added_norms: tuple[str, ...] = ()  # of pre-norm blocks that also normalise what attention and MLP put out
    norm_eps: str = "eps"  # attribute of the norm modules
    norm_offset: float = 0.0  # the norm multiplies by offset + weight


@dataclass(frozen=True, kw_only=True)
class AttentionLayout:
    """Self-attention in a block."""

    attention: str = "self_attn"
    query: str = "self_attn.q_proj"
    key: str = "self_attn.k_proj"
    value: str = "self_attn.v_proj"
    output: str = "self_attn.o_proj"
    query_norm: str | None = None
    key_norm: str | None = None
    attention_norm: str = "input_layernorm"  # an Identity is none
    #: Fused: [q | k | v], or [q | k | v] head by head; packed: torch's own layers, whose projections become modules.
    qkv: Literal["separate", "joined", "per_head", "packed"] = "separate"
    grouped: bool = False  # `config.num_key_value_heads` key-value heads
    eager_only: bool = False  # transformers has no other attention kernel for them
    own_kernel: str | None = None  # the method of attention modules that is their kernel, which no interface calls
    score_cap_field: str | None = None  # field of the config: scores z become cap * tanh(z / cap), where it is not None


@dataclass(frozen=True)
class Experts:
    """Paths from a block with a mixture of experts instead of an MLP: a router weighs the best few for each token.

    The router gives (logits [N, E], weights [N, k], experts [N, k]) of states [N, D]. The experts, one module with the
    weights of all [E, out, in], gate and up joined, read states, experts and weights. One that every token is sent to
    may stand beside them: a gated MLP, its parts named as those of an MLP, weighed by a sigmoid.
    """

    mlp: str = "mlp"  # puts out all that is added behind attention
    router: str = "mlp.gate"
    all: str = "mlp.experts"
    shared: str | None = None  # in place of `mlp` in the paths of an MLP's parts
    shared_gate: str | None = None


@dataclass(frozen=True, kw_only=True)
class FeedForwardLayout:
    """The MLP of a block, or its mixture of experts."""

    mlp_norm: str = "post_attention_layernorm"  # may be the same as that of attention
    activation: str = "mlp.act_fn"
    gate: str | None = None  # gated MLPs: activation(gate(x)) * up(x); one module may put out both
    up: str = "mlp.up_proj"
    down: str = "mlp.down_proj"
    experts: Experts | None = None  # in those blocks where they are; the others have the MLP above
    activation_field: str = "hidden_act"  # field of the config that names the activation
    feed_forward_field: str = "intermediate_size"  # field of the config that holds the number of neurons


@dataclass(frozen=True)
class LabelHead:
    """The head of a model that predicts labels: a linear layer with a row for each, and the layers before it."""

    output: str
    dense: str | None = None  # a linear layer before it, with `activation` behind
    activation: str = "tanh"
    norm: str | None = None  # behind the activation
    requires: tuple[Requirement, ...] = ()  # of the config, beside what the models require anyway


@dataclass(frozen=True, kw_only=True)
class HeadLayout:
    """The layers between the last block and the logits."""

    head_dense: str | None = None  # what stands before the unembedding: dense, activation, norm
    head_norm: str | None = None
    head_activation: str | None = None  # default: that of the blocks
    unembedding: str | None = None  # default: what transformers calls the output embeddings
    logit_cap_field: str | None = None  # field of the config: logits z become cap * tanh(z / cap), where it is not None
    label_head: LabelHead | None = None  # of the same models with labels, where they are described


@dataclass(frozen=True)
class CrossAttention:
    """The attention that reads the encoder in every block of a decoder: paths from the block."""

    attention: str
    query: str
    key: str
    value: str
    output: str
    norm: str
