"""Descriptions of model families as frozen data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from lrp_core.families.layout import (
    AttentionLayout,
    CrossAttention,
    EmbeddingLayout,
    FeedForwardLayout,
    HeadLayout,
    NormLayout,
)
from lrp_core.families.requirements import ONE_LABEL, Correction, Requirement, SameAs
from lrp_core.records.capabilities import (
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
from lrp_core.records.kinds import DELETE, MASK, Kind


@dataclass(frozen=True)
class FamilyVariant:
    """Models of the same type whose config has `value` as `field`: they are laid out as `family` says."""

    field: str
    value: Any
    family: Family


@dataclass(frozen=True, kw_only=True)
class Family(EmbeddingLayout, NormLayout, AttentionLayout, FeedForwardLayout, HeadLayout):
    """A model family: the layouts of its parts, and properties of the whole model.

    A family that resembles another is `dataclasses.replace(OTHER, name=..., FIELD=...)`.

    >>> from lrp_core.families.gpt2 import GPT2
    >>> replace(GPT2, name="my_gpt2", blocks="decoder.layers").title
    'my_gpt2 models'
    """

    name: str  # transformers' `config.model_type`
    kind: Kind
    blocks: str  # path of their list
    transposed: bool = False  # weights are [in, out] (Conv1D)
    group_field: str | None = None  # field of the config: so many blocks, each of which several layers share
    decoder: Decoder | None = None  # of encoder-decoders, whose other parts are those of the encoder
    lacks: tuple[Capability, ...] = ()  # of what methods may need and most models have
    requires: tuple[Requirement | SameAs, ...] = ()  # of the config
    corrections: tuple[Correction, ...] = ()
    variants: tuple[FamilyVariant, ...] = ()  # layouts that the config chooses
    #: Module that registers the models' classes with transformers, which knows most by itself.
    classes: str | None = None

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
