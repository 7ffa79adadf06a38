"""Relevance for transformer language models: families and kinds of models, rules, interventions, methods.

Names are imported when first used, so that code that needs only the errors does not wait for torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from closelook.lrp_core.lazy import lazily

if TYPE_CHECKING:
    from closelook.lrp_core.families import Family
    from closelook.lrp_core.methods import METHODS, attribute
    from closelook.lrp_core.methods.record import Method
    from closelook.lrp_core.opening.loading import load_model, random_model
    from closelook.lrp_core.opening.model import view_of
    from closelook.lrp_core.records.capabilities import Capability
    from closelook.lrp_core.records.explained import EXPLANATIONS, without_sum
    from closelook.lrp_core.records.option import Option
    from closelook.lrp_core.records.types import (
        EMBEDDINGS,
        POOLINGS,
        Batch,
        Relevance,
        Request,
        UnsupportedMethod,
        UnsupportedModel,
        UnusableRows,
        UserError,
        span_row,
    )
    from closelook.lrp_core.views.view import ModelView

__all__ = [
    "EMBEDDINGS",
    "EXPLANATIONS",
    "METHODS",
    "POOLINGS",
    "Batch",
    "Capability",
    "Family",
    "Method",
    "ModelView",
    "Option",
    "Relevance",
    "Request",
    "UnsupportedMethod",
    "UnsupportedModel",
    "UnusableRows",
    "UserError",
    "attribute",
    "load_model",
    "random_model",
    "span_row",
    "view_of",
    "without_sum",
]

_HOMES = {
    "EMBEDDINGS": "closelook.lrp_core.records.types",
    "EXPLANATIONS": "closelook.lrp_core.records.explained",
    "METHODS": "closelook.lrp_core.methods",
    "POOLINGS": "closelook.lrp_core.records.types",
    "Batch": "closelook.lrp_core.records.types",
    "Capability": "closelook.lrp_core.records.capabilities",
    "Family": "closelook.lrp_core.families",
    "Method": "closelook.lrp_core.methods.record",
    "ModelView": "closelook.lrp_core.views.view",
    "Option": "closelook.lrp_core.records.option",
    "Relevance": "closelook.lrp_core.records.types",
    "Request": "closelook.lrp_core.records.types",
    "UnsupportedMethod": "closelook.lrp_core.records.types",
    "UnsupportedModel": "closelook.lrp_core.records.types",
    "UnusableRows": "closelook.lrp_core.records.types",
    "UserError": "closelook.lrp_core.records.types",
    "attribute": "closelook.lrp_core.methods",
    "load_model": "closelook.lrp_core.opening.loading",
    "random_model": "closelook.lrp_core.opening.loading",
    "span_row": "closelook.lrp_core.records.types",
    "view_of": "closelook.lrp_core.opening.model",
    "without_sum": "closelook.lrp_core.records.explained",
}
__getattr__, __dir__ = lazily(__name__, _HOMES)
