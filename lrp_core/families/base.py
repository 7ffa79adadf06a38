"""The record that describes a model family."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from closelook.lrp_core.families.layout import (
    ONE_LABEL,
    AttentionLayout,
    CrossAttention,
    EmbeddingLayout,
    FeedForwardLayout,
    HeadLayout,
    NormLayout,
    Requirement,
    SameAs,
)
from closelook.lrp_core.records.capabilities import (
    ATTENTION,
    DELETION,
    GRADIENTS,
    MASKING,
    NEURONS,
    ONE_STACK,
    PLAIN_MLPS,
    PLAIN_SUMS,
    POSITIONS,
    POST_NORM,
    PRE_NORM,
    STATES,
    UNCENTRED,
    Capability,
)
from closelook.lrp_core.records.kinds import DELETE, MASK, Kind
from closelook.lrp_core.records.types import UnsupportedModel


@dataclass(frozen=True)
class FamilyVariant:
    """Another layout of models of the same type: `family` describes those whose config has `value` in `field`."""

    field: str
    value: Any
    family: Family


@dataclass(frozen=True, kw_only=True)
class Family(EmbeddingLayout, NormLayout, AttentionLayout, FeedForwardLayout, HeadLayout):
    """The description of a model family: where its parts are and how they are laid out, and what it requires.

    To describe a family that resembles another, use `dataclasses.replace(OTHER, name=..., FIELD=...)`.

    >>> from closelook.lrp_core.families.gpt2 import GPT2
    >>> replace(GPT2, name="my_gpt2", blocks="decoder.layers").title
    'my_gpt2 models'
    """

    name: str  # transformers' `config.model_type`
    kind: Kind
    blocks: str  # path of the list of blocks
    transposed: bool = False  # weights are stored as [in, out] (Conv1D)
    decoder: Decoder | None = None  # of encoder-decoders; the other fields then describe the encoder
    lacks: tuple[Capability, ...] = ()  # capabilities that most models have and these do not
    requires: tuple[Requirement | SameAs, ...] = ()  # conditions on the config
    variants: tuple[FamilyVariant, ...] = ()  # other layouts, which the config chooses
    #: The module that registers the models' classes with transformers; None if transformers has them.
    classes: str | None = None

    @property
    def title(self) -> str:
        """The family's models in a message, such as "gpt2 models"."""
        return f"{self.name} models with labels" if self.kind.labels else f"{self.name} models"

    @property
    def is_generic(self) -> bool:
        """True for the family of models without a description."""
        return not self.blocks

    @property
    def attention_adds(self) -> bool:
        """True if the attention module itself adds the residual, so that the norm of the sum is inside of it."""
        return self.norm_order == "post" and self.attention_norm.startswith(f"{self.attention}.")

    @property
    def with_labels(self) -> Family | None:
        """The family of these models with a classifier or regressor on top; None if no `label_head` describes it."""
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
        )

    def require(self, config: Any, *further: Requirement) -> None:
        """Raise UnsupportedModel for a config that does not meet the family's conditions and `further` ones."""
        for requirement in (*self.requires, *further):
            unmet = requirement.unmet_by(config)
            if unmet is not None:
                raise UnsupportedModel(f"{self.title} {unmet}")

    @cached_property
    def capabilities(self) -> frozenset[Capability]:
        """The capabilities of these models, which methods may need."""
        of_norms = {"pre": {PRE_NORM}, "post": {POST_NORM}, "added": set()}[self.norm_order]
        of_norms |= {UNCENTRED} if self.norm == "rms" else set()
        transformed = self.logit_cap_field is not None or self.head_dense is not None
        bare = not self.added_norms and not transformed if self.norm_order == "pre" else self.norm_order == "post"
        if self.norm_order != "post" or (self.gate is None and self.experts is None):
            of_norms |= {PLAIN_MLPS}
        of_stack = set() if self.kind.decoder else {STATES, ONE_STACK, NEURONS}
        known = {GRADIENTS, ATTENTION, POSITIONS} | of_norms | of_stack | ({PLAIN_SUMS} if bare else set())
        return frozenset(known.union(perturbable(self.kind)).difference(self.lacks))


@dataclass(frozen=True)
class Decoder:
    """The description of the decoder of an encoder-decoder."""

    family: Family  # describes the parts of the decoder
    cross: CrossAttention
    stack: str  # path of the module that runs the decoder


def perturbable(kind: Kind) -> set[Capability]:
    """The capabilities MASKING and DELETION, as far as models of this kind have them."""
    ways = {MASK: MASKING, DELETE: DELETION}
    known = kind.perturbations if kind.slot else [way for way in kind.perturbations if way != MASK]
    return {ways[way] for way in known if way in ways}
