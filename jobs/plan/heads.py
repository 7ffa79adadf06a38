"""The prediction of a model's head: words, labels by their names, or a score."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evaluation.benchmark.labels import distinct
from evaluation.tasks.record import Output
from lrp_core.records.types import UserError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from jobs.config import ModelConfig
    from lrp_core.families import Family


def head_of(model: ModelConfig, family: Family, config: PretrainedConfig) -> tuple[Output, tuple[str, ...]]:
    """The kind of the head's output, and the labels of a classifier in the order of its outputs.

    `classes` of the model replace its own names of labels. Labels with equal names get their number added. Raises
    UserError for several scores, for `classes` of a model that predicts words, and for fewer or more `classes` than
    outputs.
    """
    labels = tuple(str(name) for _, name in sorted((config.id2label or {}).items()))
    if not family.kind.labels:
        if model.classes is not None:
            raise UserError(f"model {model.name}: `classes` name labels, and this model predicts words: leave them out")
        return "token", ()
    if model.classes is not None and len(model.classes) != len(labels):
        raise UserError(
            f"model {model.name}: `classes` names {len(model.classes)} labels, and the model has {len(labels)}: "
            f"{', '.join(labels)}; name one for each, in this order"
        )
    if len(labels) == 1 or config.problem_type == "regression":
        if len(labels) > 1:
            raise UserError(f"model {model.name} predicts {len(labels)} scores at once: give a model with one")
        return "score", ()
    return "label", distinct(model.classes or labels)
