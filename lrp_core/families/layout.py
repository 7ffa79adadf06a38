"""The parts of a family's description: paths of modules, layouts of weights, names of config fields, and conditions.

Paths of parts of the model start at the model, those of parts of a block at the block. Fields that end in `_field` name
a field of the model's config. Conditions on the config name values under which the description would be wrong.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Any, Literal


@dataclass(frozen=True)
class Requirement:
    """A config field that must have one of the allowed values. A field that the config lacks counts as None."""

    field: str  # a name; dots lead into dictionaries
    allowed: tuple[Any, ...]
    because: str = ""  # the reason, for the message

    def unmet_by(self, config: Any) -> str | None:
        """The fault of the config's value, in words; None if it is allowed."""
        value: Any = config
        for name in self.field.split("."):
            value = value.get(name) if isinstance(value, dict) else getattr(value, name, None)
        if value in self.allowed:
            return None
        supported = " or ".join(str(value) for value in self.allowed if value is not None)
        because = f": {self.because}" if self.because else ""
        way = f"with {self.field}={supported}" if supported else f"without {self.field}"
        return f"are supported {way} only, not {value}{because}"


@dataclass(frozen=True)
class SameAs:
    """A config field that must be None or have the value of the field `other`."""

    field: str
    other: str
    because: str

    def unmet_by(self, config: Any) -> str | None:
        """The fault of the config's value, in words; None if it is allowed."""
        value, required = getattr(config, self.field, None), getattr(config, self.other)
        if value in (None, required):
            return None
        return f"are supported with {self.field}={self.other} ({required}) only, not {value}: {self.because}"


#: Rotary frequencies must not depend on the longest sample of a batch, as they do for other values.
STEADY_ROTARY = Requirement(
    "rope_parameters.rope_type",
    ("default", "linear", "llama3", "yarn"),
    "frequencies that follow the longest sample of a batch would change the numbers of its neighbours",
)
#: The same for models with full and sliding-window attention layers.
STEADY_ROTARIES = tuple(
    replace(STEADY_ROTARY, field=f"rope_parameters.{layers}.rope_type")
    for layers in ("full_attention", "sliding_attention")
)

#: For BERT and similar models.
ABSOLUTE_POSITIONS = Requirement(
    "position_embedding_type", (None, "absolute"), "transformers drops relative positions silently"
)
WHOLE_FEED_FORWARD = Requirement("chunk_size_feed_forward", (0,), "neurons are read where all tokens pass at once")
#: For causal models: with other values transformers' attention lets tokens attend to later tokens.
NO_LOOKING_AHEAD = tuple(
    Requirement(field, allowed, "attention that looks ahead is no causal model's")
    for field, allowed in (("is_causal", (None, True)), ("use_bidirectional_attention", (None, False)))
)
#: For models with labels: if several labels may hold at once, there is no probability distribution over labels.
ONE_LABEL = Requirement(
    "problem_type", (None, "single_label_classification", "regression"), "labels that exclude each other, or a score"
)


@dataclass(frozen=True, kw_only=True)
class EmbeddingLayout:
    """The embeddings of tokens, positions and segments, and how many tokens they reach."""

    token_embedding: str
    position_embedding: str | None = None  # learned positions, added to the token embedding
    segment_embedding: str | None = None  # of each token's segment, added to the token embedding
    embedding_norm: str | None = None
    embedding_projection: str | None = None  # a linear layer after the embeddings, in models with narrower ones
    max_length_field: str = "max_position_embeddings"
    relative_positions: bool = False  # positions are relative, so texts may have any length
    positions_after_padding: bool = False  # position ids start at `config.pad_token_id + 1`

    def most_tokens(self, config: Any) -> int:
        """The most tokens that a sample may have, for a model with this config."""
        if self.relative_positions:
            return sys.maxsize
        return config.max_position_embeddings - (config.pad_token_id + 1 if self.positions_after_padding else 0)


@dataclass(frozen=True, kw_only=True)
class NormLayout:
    """The kind of the norms, and where they are applied."""

    norm: Literal["layer", "rms"]
    #: The norms of attention and MLP are applied to their inputs (pre), to the sums with the residual (post), or to
    #: their outputs before these are added (added).
    norm_order: Literal["pre", "post", "added"]
    final_norm: str | None = None
    added_norms: tuple[str, ...] = ()  # norms of the outputs of attention and MLP, in pre-norm blocks that have both
    norm_eps: str = "eps"  # the attribute of norm modules that holds their eps
    norm_offset: float = 0.0  # norms multiply by offset + weight


@dataclass(frozen=True, kw_only=True)
class AttentionLayout:
    """The self-attention of a block."""

    attention: str = "self_attn"
    query: str = "self_attn.q_proj"
    key: str = "self_attn.k_proj"
    value: str = "self_attn.v_proj"
    output: str = "self_attn.o_proj"
    query_norm: str | None = None
    key_norm: str | None = None
    attention_norm: str = "input_layernorm"  # an nn.Identity counts as no norm
    #: How the projections are stored: in separate modules, in one as [q | k | v] (joined) or as [q | k | v] for each
    #: head (per_head).
    qkv: Literal["separate", "joined", "per_head"] = "separate"
    grouped: bool = False  # has `config.num_key_value_heads` key-value heads, fewer than heads
    eager_only: bool = False  # transformers has only an eager attention kernel for these models
    own_kernel: str | None = None  # the method that holds the kernel, in modules that bypass transformers' interface


@dataclass(frozen=True)
class Experts:
    """The paths of a mixture of experts, which some or all blocks have in place of an MLP.

    The router turns states [N, D] into (logits [N, E], weights [N, k], experts [N, k]), the k best experts of each of N
    tokens. The routed experts are one module with weights [E, out, in], gate and up joined, called with states, experts
    and weights. A shared expert, a gated MLP that all tokens pass, may be added with the weight of a sigmoid.
    """

    mlp: str = "mlp"  # the module whose output is added to the residual stream
    router: str = "mlp.gate"
    all: str = "mlp.experts"  # the module of all routed experts
    shared: str | None = None  # the shared expert: takes the place of `mlp` in the paths of an MLP's parts
    shared_gate: str | None = None  # the linear layer before the sigmoid


@dataclass(frozen=True, kw_only=True)
class FeedForwardLayout:
    """The MLP of a block, or its mixture of experts."""

    mlp_norm: str = "post_attention_layernorm"  # may be the same module as attention's norm
    activation: str = "mlp.act_fn"
    gate: str | None = None  # of gated MLPs, activation(gate(x)) * up(x); may be the same module as `up`
    up: str = "mlp.up_proj"
    down: str = "mlp.down_proj"
    experts: Experts | None = None  # of blocks that have experts; other blocks have the MLP above
    activation_field: str = "hidden_act"  # the name of the activation
    feed_forward_field: str = "intermediate_size"  # the number of neurons


@dataclass(frozen=True)
class LabelHead:
    """The head of a model that predicts labels: an output layer with a row for each label, and the layers before it."""

    output: str
    dense: str | None = None  # a linear layer before the output layer, followed by `activation`
    activation: str = "tanh"
    norm: str | None = None  # applied after the activation
    requires: tuple[Requirement, ...] = ()  # further conditions on the config


@dataclass(frozen=True, kw_only=True)
class HeadLayout:
    """The layers between the last block and the logits."""

    head_dense: str | None = None  # the head's transform is a linear layer, an activation and a norm
    head_norm: str | None = None
    head_activation: str | None = None  # the name of its activation; default: that of the blocks
    unembedding: str | None = None  # default: the output embeddings of transformers
    logit_cap_field: str | None = None  # the soft cap of logits z, cap * tanh(z / cap); None in the config: no cap
    label_head: LabelHead | None = None  # the head of such models with labels, if they are supported


@dataclass(frozen=True)
class CrossAttention:
    """The cross-attention in each block of a decoder, whose keys and values are the encoder's."""

    attention: str
    query: str
    key: str
    value: str
    output: str
    norm: str
