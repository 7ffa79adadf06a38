"""Descriptions of model families as frozen data: the paths of their parts and the layout of their weights."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Any, Literal

from lrp_core.capabilities import (
    ATTENTION,
    DELETION,
    GRADIENTS,
    MASKING,
    NEURONS,
    ONE_STACK,
    PLAIN_SUMS,
    POSITIONS,
    POST_NORM,
    PRE_NORM,
    RULES,
    STATES,
    UNCENTRED,
    Capability,
)
from lrp_core.kinds import DELETE, MASK, Kind


@dataclass(frozen=True)
class Requirement:
    """A field of the config whose other values no rule covers. Fields that a config lacks are None."""

    field: str  # dots lead into dictionaries
    allowed: tuple[Any, ...]
    because: str = ""

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
    """A field of the config that must have the value of another, unless it is None."""

    field: str
    other: str
    because: str

    def unmet_by(self, config: Any) -> str | None:
        """The fault of the config's value, in words; None if it is allowed."""
        value, required = getattr(config, self.field, None), getattr(config, self.other)
        if value in (None, required):
            return None
        return f"are supported with {self.field}={self.other} ({required}) only, not {value}: {self.because}"


@dataclass(frozen=True)
class Correction:
    """A mended description: models whose config has other values than `unaffected` were explained wrongly before."""

    field: str
    unaffected: tuple[Any, ...]
    mark: str  # enters the identity of the affected models, so that results of the wrong description are not theirs

    def mark_of(self, config: Any) -> str:
        """The addition to the identity of a model with this config; "" if the mended description is the same to it."""
        return "" if getattr(config, self.field) in self.unaffected else self.mark


#: Frequencies of rotary positions that are the same for every sample. Those of the other kinds depend on the longest.
STEADY_ROTARY = Requirement(
    "rope_parameters.rope_type",
    ("default", "linear", "llama3", "yarn"),
    "frequencies that follow the longest sample of a batch would change the numbers of its neighbours",
)
#: The same of models whose layers differ in how far they look.
STEADY_ROTARIES = tuple(
    replace(STEADY_ROTARY, field=f"rope_parameters.{layers}.rope_type")
    for layers in ("full_attention", "sliding_attention")
)

#: Of BERT's kin.
ABSOLUTE_POSITIONS = Requirement(
    "position_embedding_type", (None, "absolute"), "transformers drops relative positions silently"
)
WHOLE_FEED_FORWARD = Requirement("chunk_size_feed_forward", (0,), "neurons are read where all tokens pass at once")
#: Of models that see what came before alone: transformers' masks, and its attention, follow such fields.
NO_LOOKING_AHEAD = tuple(
    Requirement(field, allowed, "attention that looks ahead is no causal model's")
    for field, allowed in (("is_causal", (None, True)), ("use_bidirectional_attention", (None, False)))
)


@dataclass(frozen=True)
class LabelHead:
    """The head of a model that predicts labels: a linear layer with a row for each, and the layers before it."""

    output: str
    dense: str | None = None  # a linear layer before it, with `activation` behind
    activation: str = "tanh"
    norm: str | None = None  # behind the activation
    requires: tuple[Requirement, ...] = ()  # of the config, beside what the models require anyway


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


#: Of models with labels: where several may hold at once there is no runner-up, nor a distribution over them.
ONE_LABEL = Requirement(
    "problem_type", (None, "single_label_classification", "regression"), "labels that exclude each other, or a score"
)


@dataclass(frozen=True)
class CrossAttention:
    """The attention that reads the encoder in every block of a decoder: paths from the block."""

    attention: str
    query: str
    key: str
    value: str
    output: str
    norm: str


@dataclass(frozen=True)
class FamilyVariant:
    """Models of the same type whose config has `value` as `field`: they are laid out as `family` says."""

    field: str
    value: Any
    family: Family


@dataclass(frozen=True)
class Family:
    """Paths of modules: from the model's root for the model's parts, from a block for the block's parts."""

    name: str  # transformers' `config.model_type`
    kind: Kind

    # model
    blocks: str
    token_embedding: str
    norm: Literal["layer", "rms"]
    # where the norms of attention and MLP stand: before them, behind the sums, or behind each before it is added
    norm_order: Literal["pre", "post", "added"]
    final_norm: str | None = None
    position_embedding: str | None = None  # learned positions, added to the token embedding
    segment_embedding: str | None = None  # segment 0 is added to the token embedding
    embedding_norm: str | None = None
    embedding_projection: str | None = None  # a linear layer behind them, where a config makes them narrower
    head_dense: str | None = None  # what stands before the unembedding: dense, activation, norm
    head_norm: str | None = None
    head_activation: str | None = None  # default: that of the blocks
    unembedding: str | None = None  # default: what transformers calls the output embeddings
    logit_cap_field: str | None = None  # field of the config: logits z become cap * tanh(z / cap), where it is not None
    label_head: LabelHead | None = None  # of the same models with labels, where they are described
    decoder: Decoder | None = None  # of encoder-decoders, whose other parts are those of the encoder

    # block
    attention: str = "self_attn"
    query: str = "self_attn.q_proj"
    key: str = "self_attn.k_proj"
    value: str = "self_attn.v_proj"
    output: str = "self_attn.o_proj"
    query_norm: str | None = None
    key_norm: str | None = None
    attention_norm: str = "input_layernorm"  # an Identity is none
    mlp_norm: str = "post_attention_layernorm"  # may be the same as that of attention
    added_norms: tuple[str, ...] = ()  # of pre-norm blocks that also normalise what attention and MLP put out
    activation: str = "mlp.act_fn"
    gate: str | None = None  # gated MLPs: activation(gate(x)) * up(x); one module may put out both
    up: str = "mlp.up_proj"
    down: str = "mlp.down_proj"
    experts: Experts | None = None  # in those blocks where they are; the others have the MLP above

    # layouts
    #: Fused: [q | k | v], or [q | k | v] head by head; packed: torch's own layers, whose projections become modules.
    qkv: Literal["separate", "joined", "per_head", "packed"] = "separate"
    transposed: bool = False  # weights are [in, out] (Conv1D)
    grouped: bool = False  # `config.num_key_value_heads` key-value heads
    norm_eps: str = "eps"  # attribute of the norm modules
    norm_offset: float = 0.0  # the norm multiplies by offset + weight
    activation_field: str = "hidden_act"  # field of the config that names the activation
    feed_forward_field: str = "intermediate_size"  # fields of the config that hold these sizes
    max_length_field: str = "max_position_embeddings"
    position_shift: int = 0  # rows of the position embedding before position 0, which the module skips by itself
    relative_positions: bool = False  # texts of any length
    positions_after_padding: bool = False  # position ids start at `config.pad_token_id + 1`
    eager_only: bool = False  # transformers has no other attention kernel for them
    own_kernel: str | None = None  # the method of attention modules that is their kernel, which no interface calls
    score_cap_field: str | None = None  # field of the config: attention scores are capped as logits are
    group_field: str | None = None  # field of the config: so many blocks, each of which several layers share
    lacks: tuple[Capability, ...] = ()  # of what methods may need and most models have
    requires: tuple[Requirement | SameAs, ...] = ()  # of the config
    corrections: tuple[Correction, ...] = ()
    variants: tuple[FamilyVariant, ...] = ()  # layouts that the config chooses
    classes: str | None = (
        None  # module that registers the models' classes with transformers, which knows most by itself
    )

    @property
    def title(self) -> str:
        """Such models, in a message."""
        return f"{self.name} models with labels" if self.kind.labels else f"{self.name} models"

    @property
    def attention_adds(self) -> bool:
        """True if attention modules add their input to their output: the norm of the sum is inside."""
        return self.norm_order == "post" and self.attention_norm.startswith(f"{self.attention}.")

    @property
    def with_labels(self) -> Family | None:
        """The family of these models with a classifier or a regressor on top; None where nobody described it."""
        head, kind = self.label_head, self.kind.with_labels
        if head is None or kind is None:
            return None
        return replace(
            self,
            kind=kind,
            head_dense=head.dense,
            head_norm=head.norm,
            head_activation=head.activation,
            unembedding=head.output,
            logit_cap_field=None,
            requires=(*self.requires, *head.requires, ONE_LABEL),
            corrections=(),
        )

    def marks_of(self, config: Any) -> str:
        """The additions of the description's corrections to the identity of a model with this config."""
        return "".join(correction.mark_of(config) for correction in self.corrections)

    def most_tokens(self, config: Any) -> int:
        """Most tokens that a sample of a model with this config may have."""
        if self.relative_positions:
            return sys.maxsize
        return config.max_position_embeddings - (config.pad_token_id + 1 if self.positions_after_padding else 0)

    @property
    def capabilities(self) -> frozenset[Capability]:
        """The capabilities, which methods may need, that these models have."""
        of_norms = {"pre": {PRE_NORM}, "post": {POST_NORM}, "added": set()}[self.norm_order]
        of_norms |= {UNCENTRED} if self.norm == "rms" else set()
        transformed = self.logit_cap_field is not None or self.head_dense is not None
        bare = not self.added_norms and not transformed if self.norm_order == "pre" else self.norm_order == "post"
        of_stack = set() if self.kind.decoder else {STATES, ONE_STACK, NEURONS}
        known = {GRADIENTS, RULES, ATTENTION, POSITIONS} | of_norms | of_stack | ({PLAIN_SUMS} if bare else set())
        return frozenset(known.union(perturbable(self.kind)).difference(self.lacks))


@dataclass(frozen=True)
class Decoder:
    """The second half of an encoder-decoder. `family` has the paths of its parts; where it stands by itself, `stack`
    is the module that runs it, as `encoder_stack` runs the encoder.
    """

    family: Family
    cross: CrossAttention
    encoder_stack: str
    stack: str
    logits_bias: str | None = None  # a buffer [1, V] that is added to the logits
    scaled_field: str | None = None  # field of the config: hidden states are divided by sqrt(D) before the unembedding


def perturbable(kind: Kind) -> set[Capability]:
    """The ways to take a token away by itself that models of this kind have."""
    ways = {MASK: MASKING, DELETE: DELETION}
    known = kind.perturbations if kind.slot else [way for way in kind.perturbations if way != MASK]
    return {ways[way] for way in known if way in ways}
