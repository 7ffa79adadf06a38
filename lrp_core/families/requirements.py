"""Conditions on a model's config: values under which its family's description would be wrong, and past corrections."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any


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


@dataclass(frozen=True)
class Correction:
    """A corrected error of a description, which affected models whose `field` is not among the `unaffected` values."""

    field: str
    unaffected: tuple[Any, ...]
    mark: (
        str  # added to the identity of affected models, so that stored results of the wrong description are not reused
    )

    def mark_of(self, config: Any) -> str:
        """The mark for a model with this config; "" if the error did not affect it."""
        return "" if getattr(config, self.field) in self.unaffected else self.mark


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
