"""The table of model families, found by transformers' `config.model_type`.

To add a family, write a file here and add a line to the table. Other packages add families through the entry points
`closelook.families`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from closelook.lrp_core.families import bert, gpt2, llama, phi
from closelook.lrp_core.families.bart import BART
from closelook.lrp_core.families.base import Family
from closelook.lrp_core.families.distilbert import DISTILBERT
from closelook.lrp_core.families.generic import GENERIC, generic_family, serves
from closelook.lrp_core.families.gpt_neox import GPT_NEOX
from closelook.lrp_core.families.images import VIT
from closelook.lrp_core.families.layout import NO_LOOKING_AHEAD
from closelook.lrp_core.families.modernbert import MODERNBERT
from closelook.lrp_core.families.opt import OPT
from closelook.lrp_core.families.t5 import T5
from closelook.lrp_core.records.kinds import CLASSIFIER
from closelook.lrp_core.records.registry import Registry
from closelook.lrp_core.records.types import UnsupportedModel, UserError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

FAMILIES: Registry[Family] = Registry(
    "family",
    bert.BERT,
    bert.ROBERTA,
    DISTILBERT,
    bert.ELECTRA,
    bert.MEGATRON_BERT,
    MODERNBERT,
    bert.DEBERTA,
    gpt2.GPT2,
    OPT,
    gpt2.GPT_NEO,
    GPT_NEOX,
    llama.LLAMA,
    llama.MISTRAL,
    llama.QWEN2,
    llama.QWEN3,
    llama.MIXTRAL,
    llama.QWEN2_MOE,
    llama.GEMMA,
    llama.GEMMA2,
    llama.GEMMA3,
    llama.OLMO2,
    phi.PHI,
    phi.PHI3,
    VIT,
    T5,
    BART,
    group="closelook.families",
    record_class=Family,
)

#: transformers' tables of classes whose heads would be ignored silently, so they are refused: classes that predict
#: neither a token nor a label of the whole text, and those that predict labels, of families without `label_head`.
_OTHER_HEADS = (
    "MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES",
    "MODEL_FOR_NEXT_SENTENCE_PREDICTION_MAPPING_NAMES",
    "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES",
    "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",
    CLASSIFIER.classes,
)


def family_of_type(model_type: str) -> Family:
    """The family of models of this type. Raises UnsupportedModel, listing the supported types, if there is none."""
    if model_type not in FAMILIES:
        raise UnsupportedModel(f"no family describes {model_type!r} models; supported: {', '.join(FAMILIES)}")
    return FAMILIES[model_type]


def check_type(model_type: str) -> None:
    """Raise UnsupportedModel for models of a type that no family describes and that do not run as a whole either."""
    if model_type not in FAMILIES and not serves(model_type):
        family_of_type(model_type)


def register_model_classes() -> None:
    """Import the modules that register classes of models with transformers; to be called before it opens a model.

    Raises UserError, naming the package, for a module that cannot be imported.
    """
    for family in FAMILIES.values():
        if family.classes is None:
            continue
        try:
            import_module(family.classes)
        except (Exception, SystemExit) as error:  # whatever the package's own code raises
            by, reason = FAMILIES.owner(family.name), " ".join(f"{type(error).__name__}: {error}".split())
            raise UserError(
                f"{by} brings the classes of {family.name} models in {family.classes}, which cannot be imported "
                f"({reason}): repair or uninstall it"
            ) from error


def family_of(config: PretrainedConfig, architecture: str | None = None, name: str | None = None) -> Family:
    """The family of a model with this config and class `architecture` (default: the class that the config names).

    It is the family with labels if the class has a classifier or regressor on top, and the generic family if no family
    describes the type, or if `name` is "generic". Raises UnsupportedModel for an unknown type, a head that is not
    explained, and a config that no rule covers; raises UserError for another `name`.
    """
    if name == GENERIC:
        return generic_family(config, architecture)
    if name is not None:
        raise UserError(
            f"unknown family {name!r}: give {GENERIC!r}, or leave family out for the one of the model's type"
        )
    if config.model_type not in FAMILIES and serves(config.model_type):
        return generic_family(config, architecture)
    family = family_of_type(config.model_type)
    if family.is_generic:
        family.require(config)
        return family
    chosen = (variant.family for variant in family.variants if getattr(config, variant.field) == variant.value)
    family = next(chosen, family)
    for named in (config.architectures or ()) if architecture is None else (architecture,):
        family = _with_head_of(family, named)
    family.require(config, *(NO_LOOKING_AHEAD if family.kind.causal else ()))
    return family


def _with_head_of(family: Family, architecture: str) -> Family:
    """The family, or the same with labels if the class `architecture` has a classifier or regressor on top.

    Raises UnsupportedModel for a class with another head.
    """
    labelled = family.with_labels
    if labelled is not None and class_in(labelled.kind.classes, family) == architecture:
        return labelled
    if family.kind.images:
        refused = class_in(family.kind.classes, family) != architecture
    else:
        refused = any(class_in(table, family) == architecture for table in _OTHER_HEADS)
    if refused:
        raise UnsupportedModel(without_head(architecture, family))
    return family


def without_head(architecture: str, family: Family) -> str:
    """The error message for a class of the family whose head is not supported, with the classes that are."""
    heads = [family] if family.with_labels is None else [family, family.with_labels]
    fits = " or ".join(class_in(head.kind.classes, head) or head.kind.auto for head in heads)
    head = "classifier of images" if family.kind.images else "language-modelling head"
    return f"{architecture} has no {head}: give a {fits} model"


def class_in(table: str, family: Family) -> str | None:
    """The class of the family's models in one of transformers' tables, registered ones included; or None."""
    from transformers.models.auto import modeling_auto

    classes: dict[str, str] = getattr(modeling_auto, table)
    if family.name in classes:
        return classes[family.name]
    registered = getattr(modeling_auto, table.removesuffix("_NAMES"))._extra_content
    return next((model.__name__ for config, model in registered.items() if config.model_type == family.name), None)
