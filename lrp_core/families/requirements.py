"""Fields of a model's config that its description depends on: values that are refused, and mended descriptions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any


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
#: Of models with labels: where several may hold at once there is no runner-up, nor a distribution over them.
ONE_LABEL = Requirement(
    "problem_type", (None, "single_label_classification", "regression"), "labels that exclude each other, or a score"
)
