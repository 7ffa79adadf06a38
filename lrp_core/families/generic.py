"""The generic family, of models without a description, which run as a whole through transformers' interface."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from closelook.lrp_core.families.base import Family, perturbable
from closelook.lrp_core.families.layout import ONE_LABEL
from closelook.lrp_core.records.capabilities import GRADIENTS, ONE_STACK, Capability
from closelook.lrp_core.records.kinds import CAUSAL, CLASSIFIER, ENCODER_DECODER, MASKED, Kind
from closelook.lrp_core.records.types import UnsupportedModel

if TYPE_CHECKING:
    from transformers import PretrainedConfig

GENERIC = "generic"  # the value of `family` that asks for it
#: Model classes whose relevance under rules is known not to sum to the logit, though nothing tells it from others.
UNSOUND = frozenset(
    {"BailingHybridForCausalLM", "Inkling2ForCausalLM", "KimiLinearForCausalLM", "PerceiverForMaskedLM"}
)
_EVERY_LAYER = "hidden_size_per_layer_input"  # of a config: the width of the embeddings that each layer gets of its own


@dataclass(frozen=True, kw_only=True)
class GenericFamily(Family):
    """A family without paths, whose models run as a whole, from token embeddings to logits."""

    blocks: str = ""
    token_embedding: str = ""
    norm: Literal["layer", "rms"] = "layer"
    norm_order: Literal["pre", "post"] = "post"

    @property
    def title(self) -> str:
        return f"{super().title} of the family {GENERIC!r}"

    def most_tokens(self, config: Any) -> int:
        """The most tokens that a sample may have; `sys.maxsize` if the config names no limit.

        Some models (such as RoBERTa) count positions from the padding token's id + 1 on, and their limit includes those
        rows. Whether a model does is unknown, so they are subtracted if that id is small.
        """
        limit, pad = getattr(config, "max_position_embeddings", None), config.pad_token_id
        if limit is None:
            return sys.maxsize
        return limit - (pad + 1) if pad is not None and 0 <= pad < 8 else limit

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Gradients, one stack or two, and the ways to remove a token that the kind allows."""
        return frozenset({GRADIENTS} | (set() if self.kind.decoder else {ONE_STACK}) | perturbable(self.kind))


def generic_family(config: PretrainedConfig, architecture: str | None = None) -> GenericFamily:
    """The generic family of a model with this config and class `architecture`.

    By default it is the class that the config names, else the first that transformers has of the type: encoder-decoder,
    masked language model, causal language model, or classifier. Raises UnsupportedModel for classes that predict
    neither tokens nor labels, and for models whose layers read token ids.
    """
    name = config.model_type
    if getattr(config.get_text_config(), _EVERY_LAYER, None):
        raise UnsupportedModel(f"{name} models embed the tokens again in every layer, which no embedding stands for")
    named = [architecture] if architecture is not None else config.architectures or []
    known = {named: kind for named, kind in _classes(name).items() if kind.decoder == config.is_encoder_decoder}
    kinds = [known[kind] for kind in named if kind in known] if named else list(known.values())
    if not kinds:
        fits = " or ".join(known) or "masked or causal language model or a text classifier"
        described = " or ".join(named) or f"transformers' {name}"
        raise UnsupportedModel(f"{described} predicts neither a token nor a label of the text: give a {fits}")
    family = GenericFamily(name=name, kind=kinds[0], requires=(ONE_LABEL,) if kinds[0].labels else ())
    family.require(config)
    return family


def serves(model_type: str) -> bool:
    """True if the generic family takes models of this type, as transformers configures them by default."""
    from transformers import AutoConfig

    if not _classes(model_type):
        return False
    try:
        generic_family(AutoConfig.for_model(model_type))
    except UnsupportedModel:
        return False
    return True


def way_out(family: Family) -> str:
    """The end of an error message about a model of a described family; "" if the generic family does not take it."""
    if family.kind.images:
        return ""
    return f", or take `family: {GENERIC}` for the methods that need no description"


def _classes(model_type: str) -> dict[str, Kind]:
    """The kinds of models of this type by the names of their classes; a class of two kinds has the first.

    The order is encoder-decoder, masked, causal, classifier. A classifier is a causal one if the type has no masked
    language model: its readout position is then the last token.
    """
    from transformers.models.auto import modeling_auto

    every = (ENCODER_DECODER, MASKED, CAUSAL, CLASSIFIER)
    tables = {kind: getattr(modeling_auto, kind.classes) for kind in every}
    kinds: dict[str, Kind] = {}
    for kind in (ENCODER_DECODER, MASKED, CAUSAL):
        if model_type in tables[kind]:
            kinds.setdefault(tables[kind][model_type], kind)
    labelled = next(iter(kinds.values()), MASKED).with_labels
    if model_type in tables[CLASSIFIER] and labelled is not None:
        kinds.setdefault(tables[CLASSIFIER][model_type], labelled)
    return kinds
