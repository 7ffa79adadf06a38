"""The generic family: models without a description, run as a whole through transformers' common interface."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from lrp_core.families.base import Family, perturbable
from lrp_core.families.requirements import ONE_LABEL
from lrp_core.records.capabilities import GRADIENTS, ONE_STACK, Capability
from lrp_core.records.kinds import CAUSAL, CLASSIFIER, MASKED, Kind
from lrp_core.records.types import UnsupportedModel

if TYPE_CHECKING:
    from transformers import PretrainedConfig

GENERIC = "generic"  # how a config or a caller asks for it


@dataclass(frozen=True, kw_only=True)
class GenericFamily(Family):
    """A family without paths: its models are run as a whole, from token embeddings to logits."""

    blocks: str = ""
    token_embedding: str = ""
    norm: Literal["layer", "rms"] = "layer"
    norm_order: Literal["pre", "post"] = "post"

    @property
    def title(self) -> str:
        return f"{super().title} of the family {GENERIC!r}"

    def most_tokens(self, config: Any) -> int:
        """The largest number of tokens, somewhat fewer if the model's limit is unclear; None if there is no known
        limit.

        Some models count positions from behind the padding token's id on; their tables have so many rows more.
        """
        limit, pad = getattr(config, "max_position_embeddings", None), config.pad_token_id
        if limit is None:
            return sys.maxsize
        return limit - (pad + 1) if pad is not None and 0 <= pad < 8 else limit

    @property
    def capabilities(self) -> frozenset[Capability]:
        return frozenset({GRADIENTS, ONE_STACK} | perturbable(self.kind))


def generic_family(config: PretrainedConfig, architecture: str | None = None) -> GenericFamily:
    """The family of a model of the class `architecture` (default: that which the config names, else the first of
    masked model, causal model and classifier that transformers knows of the type).

    Raises UnsupportedModel for encoder-decoders and for classes that predict neither tokens nor labels.
    """
    name = config.model_type
    if config.is_encoder_decoder:
        raise UnsupportedModel(f"{name} models are encoder-decoders, which the family {GENERIC!r} does not serve")
    named = [architecture] if architecture is not None else config.architectures or []
    known = _classes(name)
    kinds = [known[kind] for kind in named if kind in known] if named else list(known.values())
    if not kinds:
        fits = " or ".join(known) or "masked or causal language model or a text classifier"
        described = " or ".join(named) or f"transformers' {name}"
        raise UnsupportedModel(f"{described} predicts neither a token nor a label of the text: give a {fits}")
    family = GenericFamily(name=name, kind=kinds[0], requires=(ONE_LABEL,) if kinds[0].labels else ())
    for requirement in family.requires:
        unmet = requirement.unmet_by(config)
        if unmet is not None:
            raise UnsupportedModel(f"{family.title} {unmet}")
    return family


def serves(model_type: str) -> bool:
    """True if transformers knows models of this type that predict a token or a label."""
    return bool(_classes(model_type))


def _classes(model_type: str) -> dict[str, Kind]:
    """Kinds by the names of their classes: masked, causal, with labels. What is of two kinds is of the first.

    Classifiers on models that are not trained on masks are taken for causal ones: the position that names what is
    predicted is their last token, though what their head reads is the model's own affair.
    """
    from transformers.models.auto import modeling_auto

    tables = {kind: getattr(modeling_auto, kind.classes) for kind in (MASKED, CAUSAL, CLASSIFIER)}
    kinds: dict[str, Kind] = {}
    for kind in (MASKED, CAUSAL):
        if model_type in tables[kind]:
            kinds.setdefault(tables[kind][model_type], kind)
    labelled = next(iter(kinds.values()), MASKED).with_labels
    if model_type in tables[CLASSIFIER] and labelled is not None:
        kinds.setdefault(tables[CLASSIFIER][model_type], labelled)
    return kinds
